"""The page at a gateway in front of another one: sessions of the other machine, and its absence."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.kit.running import until_there
from tests.web.browser.conftest import PHONE, has_worker, until
from tests.web.browser.end_to_end.conftest import PageGateway, SignIn
from tests.web.browser.end_to_end.loopback_proxy import LoopbackProxy

UPDATE = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "Trained."}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageGateway]:
    """The gateway that the page leads to by the other one."""
    node = PageGateway(tmp_path_factory.mktemp("node"), resumes=True)
    yield node
    assert node.running.stop() == 0, "".join(node.running.log)


@pytest.fixture(scope="module")
def link(node: PageGateway) -> Iterator[LoopbackProxy]:
    """The network between both."""
    link = LoopbackProxy(node.port)
    yield link
    link.close()


@pytest.fixture(scope="module")
def gateway(node: PageGateway, link: LoopbackProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageGateway]:
    section = (
        f'[nodes.gpu2]\nurl = "ws://127.0.0.1:{link.port}"\ntoken_file = "{node.running.token_file}"\n'
        "connect_timeout = 1.0\n"
    )
    gateway = PageGateway(tmp_path_factory.mktemp("front"), section)
    until_there(gateway.running, "gpu2")
    yield gateway
    assert gateway.running.stop() == 0, "".join(gateway.running.log)
    assert "Traceback" not in "".join(gateway.running.log), "".join(gateway.running.log)


def prompt(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Prompt").fill(text)
    page.get_by_role("button", name="Send", exact=True).click()


@pytest.mark.parametrize("phone", [False, True])
def test_session_is_started_on_another_machine_and_continued_after_that_was_away(
    phone: bool, node: PageGateway, link: LoopbackProxy, sign_in: SignIn
) -> None:
    node.play({"train": [{"update": UPDATE}]})
    page = sign_in(size=PHONE, touch=True) if phone else sign_in()
    page.locator(".machine-choices label", has_text="gpu2").click()
    page.get_by_role("button", name="New", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("radio", name="gpu2")).to_be_checked()
    dialog.get_by_role("button", name="Start").click()
    # It has a field for a first prompt of its own.
    expect(dialog).to_have_count(0)
    prompt(page, "train")
    expect(page.get_by_text("Trained.", exact=True)).to_have_count(1)
    expect(page.get_by_text("Trained.", exact=True)).to_have_count(1)
    expect(page.locator(".head")).to_contain_text("gpu2")
    link.cut(stay=True)
    expect(page.locator(".head")).to_contain_text("gpu2 is away")
    link.is_open = True
    expect(page.locator(".head")).not_to_contain_text("away")
    prompt(page, "train")
    expect(page.get_by_text("Trained.", exact=True)).to_have_count(2)


def test_session_that_was_begun_at_the_machine_itself_is_opened_from_the_list(
    node: PageGateway, sign_in: SignIn
) -> None:
    session = node.session("Sweep the rate")
    with node.client() as client:
        client.prompt(session, "hello from there")
    page = sign_in()
    entry = page.get_by_role("link", name="hello from there").or_(page.get_by_role("link", name="Sweep the rate"))
    expect(entry).to_contain_text("gpu2")
    entry.click()
    expect(page.get_by_text("hello from there", exact=True).last).to_be_visible()
    until(page, lambda: page.url.endswith(f"#/s/gpu2%2F{session}"))
    prompt(page, "and from here")
    expect(page.get_by_text("and from here", exact=True).first).to_be_visible()
    with node.client() as client:
        until(page, lambda: "and from here" in str(client.history(session)))


def test_machine_whose_gateway_was_killed_is_away_with_its_badge_until_it_is_started_again(
    node: PageGateway, link: LoopbackProxy, sign_in: SignIn
) -> None:
    node.play({"train": [{"update": UPDATE | {"content": {"type": "text", "text": "Tuned."}}}]})
    session = node.session("Tune the learning rate")
    page = sign_in()
    entry = page.get_by_role("link", name="Tune the learning rate")
    expect(entry.locator(".machine")).to_have_text("gpu2")
    entry.click()
    prompt(page, "train")
    expect(page.get_by_text("Tuned.", exact=True)).to_have_count(1)
    node.running.until_stored("Tuned.", 1)
    node.kill()
    expect(page.locator(".head")).to_contain_text("gpu2 is away")
    expect(page.locator(".machine-away")).to_contain_text("gpu2 is away")
    expect(page.get_by_text("Tuned.", exact=True)).to_have_count(1)
    node.start()
    link.gateway = node.port
    expect(page.locator(".head")).not_to_contain_text("away")
    expect(page.locator(".machine-away")).to_have_count(0)
    prompt(page, "train")
    # The first answer may go on with a line about a gap: the node was killed.
    tuned = page.locator("p", has_text=re.compile(r"^Tuned\."))
    expect(tuned).to_have_count(2)
    until(page, lambda: page.url.endswith(f"#/s/gpu2%2F{session}"))


def test_question_of_another_machine_is_answered_from_its_notification_while_no_page_is_open(
    node: PageGateway, sign_in: SignIn
) -> None:
    options = [{"optionId": name, "name": name, "kind": f"{name}_once"} for name in ("allow", "reject")]
    node.play({"ask": [{"ask": {"toolCall": {"toolCallId": "1", "title": "Run make"}, "options": options}}]})
    session = node.session("Ask on the phone")
    page = sign_in()
    until(page, lambda: has_worker(page))
    (worker,) = page.context.service_workers
    page.goto("about:blank")
    with node.client() as client:
        client.result("session/get", sessionId=session, limit=1)
        client.result("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "ask"}])
        asked = client.until_told("session/request", sessionId=session)
        # Headless browsers show no notification: this is what a touch on a button of one calls.
        data = {"sessionId": f"gpu2/{session}", "requestId": asked["requestId"], "machine": "gpu2"}
        worker.evaluate("(data) => decide({ title: '', tag: '', data }, 'allow')", data)
        assert client.until_told("session/request_resolved", sessionId=session)["outcome"] == "allow"
        client.until_told("session/status_changed", sessionId=session, status="completed")


def test_guest_watches_a_session_of_another_machine_by_a_link_that_was_made_there(
    node: PageGateway, sign_in: SignIn
) -> None:
    node.play({"train": [{"update": UPDATE}]})
    session = node.session("Shared with a guest")
    page = sign_in()
    page.get_by_role("link", name="Shared with a guest").click()
    page.get_by_role("button", name="Share").click()
    page.get_by_role("button", name="Make a link").click()
    link = page.get_by_label("Link", exact=True).input_value()
    assert link.endswith(f"/s/gpu2%2F{session}")
    page.keyboard.press("Escape")
    guest = sign_in(code=link.partition("#")[2])
    expect(guest.get_by_text("You are looking on.")).to_be_visible()
    prompt(page, "train")
    expect(guest.get_by_text("Trained.", exact=True)).to_have_count(1)
    expect(guest.locator(".composer, .list")).to_have_count(0)


def test_browser_that_is_for_one_session_of_another_machine_shows_that_alone(
    node: PageGateway, gateway: PageGateway, sign_in: SignIn
) -> None:
    node.play({"train": [{"update": UPDATE}]})
    session = node.session("For a phone")
    page = sign_in(code=gateway.code(f"gpu2/{session}"))
    prompt(page, "train")
    expect(page.get_by_text("Trained.", exact=True)).to_have_count(1)
    expect(page.locator(".head")).to_contain_text("For a phone")
    expect(page.locator(".list")).to_have_count(0)


def test_sessions_of_two_machines_stand_side_by_side(node: PageGateway, gateway: PageGateway, sign_in: SignIn) -> None:
    for each in (node, gateway):
        each.play({"say": [{"update": UPDATE}]})
    there, here = node.session("Side there"), gateway.session("Side here")
    page = sign_in(size=(1400, 800))
    expect(page.get_by_role("link", name="Side there")).to_be_visible()
    page.goto(f"{gateway.url}#/s/{here}&/s/gpu2%2F{there}")
    for title in ("Side here", "Side there"):
        pane = page.locator(".view", has=page.get_by_role("heading", name=title))
        pane.get_by_role("textbox", name="Prompt").fill("say")
        pane.get_by_role("textbox", name="Prompt").press("Control+Enter")
        expect(pane.get_by_text("Trained.", exact=True)).to_have_count(1)


def test_session_of_another_machine_is_found_by_its_text_and_renamed_there(node: PageGateway, sign_in: SignIn) -> None:
    # A list of a few has no filter.
    *_, session = [node.session(title) for title in ("1", "2", "3", "4", "5", "Before")]
    with node.client() as client:
        client.prompt(session, "quokka in the text")
        while not client.result("session/search", words="quokka")["found"]:
            pass
    page = sign_in()
    page.get_by_label("Filter sessions").fill("quokka")
    group = page.locator(".group", has=page.get_by_role("heading", name="In the text"))
    group.get_by_role("link").click()
    expect(page.locator("mark, .row").filter(has_text="quokka").first).to_be_visible()
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Rename…").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("After")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    expect(page.locator(".head h1")).to_have_text("After")
    with node.client() as client:
        titles = {it["id"]: it["title"] for it in client.result("session/list")["sessions"]}
    assert titles[session] == "After"
