"""Code and changes in a browser: colours by a worker, and what helps to read them."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import Opens, load, settled, until
from tests.web.browser.scenes import CWD, EDIT_PERMISSION, agent, shop, tool
from tests.web.browser.scripted_gateway import Message

RECORD = """
window.questions = [];
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message) {
  questions.push(message.kind);
  return post.call(this, message);
};
"""
"""Records what the page asks its worker."""

NO_WORKER = "window.Worker = class { constructor() { throw new Error('no workers'); } };"

AT_ONCE = """
window.Worker = class {
  postMessage({ id }) {
    queueMicrotask(() => this.onmessage({ data: { id, error: "no" } }));
  }
  terminate() {}
};
"""

SLOW = """
window.asked = [];
const later = window.setTimeout;
window.setTimeout = (action, time, ...rest) => (time === 8000 ? 0 : later(action, time, ...rest));
window.Worker = class {
  postMessage({ id, text }) {
    const answer = (result) => this.onmessage({ data: { id, result } });
    if (!text?.includes("a = 0")) return queueMicrotask(() => answer([]));
    asked.push(() => answer([{ starts: Uint32Array.of(0), spans: Uint32Array.of(0, text.length, 1) }]));
  }
  terminate() {}
};
"""
"""A worker that colours a text as one comment, once it is told to, and knows no other text. It may take its time."""

LINES = [f"    value_{i} = compute(something, {i})  # number {i}\n" for i in range(1500)]


def edit(old: str | None, new: str, name: str = "big.py", **members: object) -> Message:
    diff = {"type": "diff", "path": f"{CWD}/{name}", "oldText": old, "newText": new}
    return tool("big", "Edit", "edit", status="completed", content=[diff], **members)


def changed(*lines: int) -> str:
    return "".join(line.replace("compute", "derive") if i in lines else line for i, line in enumerate(LINES))


def colour(page: Page, selector: str) -> str:
    colour: str = page.locator(selector).first.evaluate("one => getComputedStyle(one).color")
    return colour


@pytest.mark.parametrize("dark", [False, True])
def test_code_and_changes_are_coloured_in_both_themes(open_page: Opens, *, dark: bool) -> None:
    page, gateway = open_page(shop(), "#/s/s1", dark=dark)
    gateway.add("s1", agent("```python\ndef f():\n    return 'one'\n```\n\n```unknown\ndef f():\n```"))
    code = page.locator(".markdown pre", has_text="return 'one'")
    expect(code.locator(".code-keyword")).to_have_text(["def", "return"])
    expect(code.locator(".code-string")).to_have_text("'one'")
    expect(page.locator(".markdown pre").last).to_have_text("def f():")
    assert page.locator(".markdown pre").last.locator("span").count() == 0
    assert colour(page, ".code-keyword") == ("rgb(230, 179, 244)" if dark else "rgb(138, 31, 143)")
    page.get_by_role("link", name="Changes").click()
    expect(page.locator(".diff .code-keyword", has_text="lambda").first).to_be_visible()
    expect(page.locator(".diff mark .code-type").first).to_have_text("sum")


@pytest.mark.firefox
def test_code_that_still_grows_keeps_its_colours(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    gateway.add("s1", agent("```python\nimport this\n"))
    keyword = page.locator(".markdown pre .code-keyword", has_text="import")
    expect(keyword).to_be_visible()
    keyword.evaluate("one => { one.dataset.seen = 'yes'; }")
    gateway.add("s1", agent("import that\n```"))
    expect(page.locator(".markdown pre .code-keyword", has_text="import")).to_have_count(2)
    expect(page.locator("[data-seen]")).to_have_count(1)


def test_while_code_grows_one_question_about_it_is_out(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    page.add_init_script(SLOW)
    load(page, gateway.url + "#/s/s1")
    gateway.add("s1", agent("```python\na = 0\n"))
    code = page.locator(".markdown pre", has_text="a = 0")
    until(page, lambda: page.evaluate("asked.length") == 1)
    for i in range(1, 10):
        gateway.add("s1", agent(f"a = {i}\n"))
        expect(code).to_contain_text(f"a = {i}")
    assert page.evaluate("asked.length") == 1
    page.evaluate("asked[0]()")
    expect(code.locator(".code-comment")).to_have_text("a = 0")
    until(page, lambda: page.evaluate("asked.length") == 2)
    page.evaluate("asked[1]()")
    expect(code.locator(".code-comment")).to_contain_text("a = 9")
    assert page.evaluate("asked.length") == 2


ANSWER_AS_SOON_AS_DRAWN = """(line) => new Promise((done) => {
  const here = async () => {
    if (!document.querySelector(".markdown:last-child pre")?.textContent.includes(line)) return;
    seen.disconnect();
    asked[0]();
    // Without a task in between: no frame is drawn, and no effect is run after one.
    for (let i = 0; i < 1000 && asked.length === 1; i += 1) await null;
    asked[1]();
    done();
  };
  const seen = new MutationObserver(here);
  seen.observe(document.body, { childList: true, characterData: true, subtree: true });
})"""


def test_answers_that_come_before_the_next_frame_bring_no_further_question(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    page.add_init_script(SLOW)
    load(page, gateway.url + "#/s/s1")
    gateway.add("s1", agent("```python\na = 0\n"))
    until(page, lambda: page.evaluate("asked.length") == 1)
    page.evaluate(f"window.answered = ({ANSWER_AS_SOON_AS_DRAWN})('a = 1'); null")
    gateway.add("s1", agent("a = 1\n"))
    page.evaluate("answered")
    expect(page.locator(".markdown pre .code-comment", has_text="a = 1")).to_be_visible()
    settled(page)
    assert page.evaluate("asked.length") == 2


def test_a_long_change_is_compared_by_the_worker_and_drawn_in_parts(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    page.add_init_script(RECORD)
    load(page, gateway.url + "#/s/s1/changes")
    gateway.add("s1", edit("".join(LINES), changed(*range(0, 1500, 3))))
    big = page.get_by_role("region", name="big.py")
    expect(big.locator(".counts .added")).to_have_text("+500")
    expect(big.locator(".code-number").first).to_be_visible()
    asked = page.evaluate("questions")
    assert asked.count("rows") == 1
    assert asked.count("change") == 2
    page.evaluate("""() => {
      window.grown = [];
      const count = () => document.querySelectorAll("[aria-label='big.py'] tr").length;
      let before = count();
      const look = () => {
        grown.push(count() - before);
        before = count();
        requestAnimationFrame(look);
      };
      requestAnimationFrame(look);
    }""")
    big.get_by_role("button", name="Show all 2000 lines").click()
    expect(big.locator("tr")).to_have_count(1500)
    assert max(page.evaluate("grown")) <= 200
    page.get_by_role("link", name="Back to the conversation").click()
    expect(page.locator(".row-tool").last.locator(".counts .added")).to_have_text("+500")
    assert page.evaluate("questions").count("rows") == 1


def test_without_a_worker_all_is_shown_without_colours(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    page.add_init_script(NO_WORKER)
    load(page, gateway.url + "#/s/s1/changes")
    gateway.add("s1", edit("".join(LINES), changed(7)))
    expect(page.get_by_role("region", name="big.py").locator(".code.diff-add")).to_contain_text("derive(something, 7)")
    assert page.locator("[class^=code-]").count() == 0


def test_a_comparison_that_is_there_at_once_is_shown(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    page.add_init_script(AT_ONCE)
    load(page, gateway.url + "#/s/s1")
    gateway.add("s1", edit("".join(LINES), changed(7)))
    expect(page.locator(".row-tool").last.locator(".counts .added")).to_have_text("+1")


def test_lines_are_wrapped_or_not_as_the_reader_chooses_and_the_choice_stays(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1/changes")
    gateway.add("s1", edit("a\n", "long = '" + "x " * 400 + "'\n"), agent("```\n" + "y " * 400 + "\n```"))
    parts = page.get_by_role("region", name="big.py").locator(".diff-parts")
    scrolls = "one => one.scrollWidth > one.clientWidth + 100"
    expect(parts.locator("tr").last).to_be_visible()
    assert not parts.evaluate(scrolls)
    wrap = page.get_by_role("region", name="big.py").get_by_role("button", name="Wrap lines")
    expect(wrap).to_have_attribute("aria-pressed", "true")
    wrap.click()
    until(page, lambda: bool(parts.evaluate(scrolls)))
    page.reload()
    expect(wrap).to_have_attribute("aria-pressed", "false")
    page.get_by_role("link", name="Back to the conversation").click()
    code = page.locator(".markdown pre", has_text="y y").last
    until(page, lambda: bool(code.evaluate(scrolls)))
    code.locator("xpath=..").get_by_role("button", name="Wrap lines").click()
    until(page, lambda: not code.evaluate(scrolls))


def test_a_question_wraps_all_lines_whatever_the_reader_has_chosen(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1/changes")
    page.get_by_role("button", name="Wrap lines").click()
    page.get_by_role("link", name="Back to the conversation").click()
    gateway.ask("s1", 9, EDIT_PERMISSION)
    card = page.locator(".permission")
    expect(card.locator(".diff-add").first).to_be_visible()
    assert card.get_by_role("button", name="Wrap lines").count() == 0
    assert card.get_by_role("button", name="Show the change").count() == 0
    expect(card.locator(".diff-parts")).not_to_have_class(re.compile("is-not-wrapped"))


def test_lines_that_were_not_compared_are_told_in_changes_and_in_a_question(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1/changes")
    content = [{"type": "diff", "path": f"{CWD}/big.py", "oldText": "1\n2\n" * 3000, "newText": "2\n1\n1\n" * 3000}]
    gateway.add("s1", tool("big", "Edit", "edit", status="completed", content=content))
    told = "Too many changes to compare: some lines are shown as removed and added as a whole."
    expect(page.get_by_role("region", name="big.py")).to_contain_text(told)
    page.get_by_role("link", name="Back to the conversation").click()
    gateway.ask("s1", 9, {**EDIT_PERMISSION, "toolCall": {**EDIT_PERMISSION["toolCall"], "content": content}})
    expect(page.locator(".permission")).to_contain_text(told)


def test_a_file_is_folded_and_unfolded(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1/changes")
    fold = page.get_by_role("button", name="Show the change of shop/basket.py")
    expect(page.locator(".diff tr").first).to_be_visible()
    fold.click()
    expect(fold).to_have_attribute("aria-expanded", "false")
    expect(page.locator(".diff tr")).to_have_count(0)
    expect(page.locator(".diff .counts")).to_be_visible()
    fold.click()
    expect(page.locator(".diff tr").first).to_be_visible()


@pytest.mark.firefox
def test_buttons_lead_from_change_to_change_across_files(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1/changes", size=(1280, 500))
    gateway.add("s1", edit("".join(LINES[:300]), changed(100, 200).split("    value_300 ")[0]))
    expect(page.locator(".changed-file")).to_have_count(2)
    page.locator(".changes-body").evaluate("body => body.scrollTo(0, 0)")
    following = page.locator(".changes-head").get_by_role("button", name="Next change")
    before = page.locator(".changes-head").get_by_role("button", name="Previous change")
    last = page.locator(".diff-add", has_text="derive(something, 200)").first
    for _ in range(6):
        following.click()
    expect(last).to_be_in_viewport()
    for _ in range(6):
        before.click()
    expect(page.locator(".change-start").first).to_be_in_viewport()


def test_files_are_opened_at_their_line_in_the_editor_that_was_chosen(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1/changes")
    expect(page.locator(".diff tr").first).to_be_visible()
    assert page.get_by_role("link", name="Open in").count() == 0
    page.get_by_label("Open files in").select_option("VS Code")
    link = page.get_by_role("link", name="Open in VS Code")
    expect(link).to_have_attribute("href", f"vscode://file{CWD}/shop/basket.py:1")
    gateway.add(
        "s1", edit("a\nb\n", "a\nc\n"), tool("t8", "Look", "read", locations=[{"path": f"{CWD}/x", "line": 3}] * 2)
    )
    expect(link.last).to_have_attribute("href", f"vscode://file{CWD}/big.py:2")
    page.reload()
    expect(link.last).to_have_attribute("href", f"vscode://file{CWD}/big.py:2")
    page.get_by_role("link", name="Back to the conversation").click()
    page.get_by_role("button", name="Look x:3").click()
    expect(page.locator(".places a").first).to_have_attribute("href", f"vscode://file{CWD}/x:3")


@pytest.mark.parametrize(("machine", "host"), [(None, "127.0.0.1"), ("gpu1", "gpu1")])
def test_files_are_opened_over_ssh_on_the_machine_that_the_gateway_names(
    open_page: Opens, machine: str | None, host: str
) -> None:
    scene = shop()
    # The agent has chosen this id.
    scene.sessions["evil.example/s1"] = scene.sessions.pop("s1") | {"id": "evil.example/s1", "machine": machine}
    scene.updates["evil.example/s1"] = scene.updates.pop("s1")
    page, _ = open_page(scene, "#/s/evil.example%2Fs1/changes")
    page.get_by_label("Open files in").select_option("VS Code over SSH")
    link = page.get_by_role("link", name="Open in VS Code over SSH")
    expect(link).to_have_attribute("href", f"vscode://vscode-remote/ssh-remote+{host}{CWD}/shop/basket.py:1")
