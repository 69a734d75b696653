"""The views that are drawn again: those that show what has changed, and no other one."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Locator, Page, Route, expect

from tests.web.browser.conftest import NewPage, settled
from tests.web.browser.scenes import agent, numbered, session, user
from tests.web.browser.scripted_gateway import Scene, ScriptedGateway, running

BOTH = "#/s/s1&/s/s2"

COUNT = """
window.drawn = [];
window.ready = import(new URL("./vendor/preact.js", document.querySelector("script").src)).then(({ options }) => {
  const before = options.__r;
  options.__r = (...given) => {
    const vnode = given.find((one) => typeof one?.type === "function");
    let pane = null;
    for (let one = vnode; one; one = one.__) if (one.type?.name === "SessionView") pane = one.props.open.id.peek();
    drawn.push([pane, vnode?.type.name]);
    before(...given);
  };
});
"""
"""Notes each component that is drawn, with the session of the pane that it is in."""


def scene() -> Scene:
    """Return a scene of a turn in one session, and another session."""
    sessions = [session("s1", "First", turn=True, status="running"), session("s2", "Second"), session("s3", "Third")]
    updates = {name: numbered([user("Go."), agent("I go.")]) for name in ("s1", "s2", "s3")}
    return Scene(sessions, updates)


@contextmanager
def counted(new_page: NewPage) -> Iterator[tuple[Page, ScriptedGateway]]:
    """Open two sessions side by side on a page whose modules are not joined, so that a test can reach Preact."""
    with running(scene()) as gateway:
        page = new_page(size=(1600, 900))
        # Ages are drawn again from time to time.
        page.add_init_script("window.setInterval = () => 0;")

        def apart(route: Route) -> None:
            route.fulfill(content_type="text/javascript", body='import "./app/main.js";')

        page.context.route("**/page.js", apart)
        page.goto(gateway.url + BOTH)
        for title in ("First", "Second"):
            expect(view(page, title)).to_contain_text("I go.")
            expect(view(page, title).get_by_role("textbox", name="Prompt")).to_be_visible()
        settled(page)
        page.evaluate(COUNT)
        page.evaluate("ready")
        yield page, gateway


def view(page: Page, title: str) -> Locator:
    return page.get_by_role("region", name=f"Session: {title}", exact=True)


def drawn(page: Page) -> list[tuple[str | None, str]]:
    """Return what was drawn until now: the session of the pane, or None, and the name of the component."""
    settled(page)
    return [(pane, name) for pane, name in page.evaluate("drawn.splice(0)")]


def test_an_update_of_one_of_two_sessions_draws_its_last_block_and_nothing_of_the_other(new_page: NewPage) -> None:
    with counted(new_page) as (page, gateway):
        for words in (" Then", " I stop."):
            gateway.add("s1", agent(words))
            expect(view(page, "First")).to_contain_text(words.strip())
            found = drawn(page)
            assert {pane for pane, _ in found} == {"s1"}
            names = [name for _, name in found]
            assert set(names) == {"Middle", "Transcript", "Row", "Boundary", "Block", "Parts", "Markdown", "Working"}
            assert names.count("Row") == 1


def test_a_changed_session_of_the_list_draws_its_row_and_nothing_of_the_open_ones(new_page: NewPage) -> None:
    with counted(new_page) as (page, gateway):
        gateway.change("s3", title="Another name")
        expect(page.locator(".list")).to_contain_text("Another name")
        found = drawn(page)
        assert {pane for pane, _ in found} == {None}
        names = [name for _, name in found]
        assert names.count("SessionRow") == 1
        assert "App" not in names


def test_what_is_typed_in_one_session_draws_its_prompt_alone(new_page: NewPage) -> None:
    with counted(new_page) as (page, _):
        field = view(page, "Second").get_by_role("textbox", name="Prompt")
        field.focus()
        drawn(page)
        page.keyboard.type("abc")
        expect(field).to_have_value("abc")
        found = drawn(page)
        assert {pane for pane, _ in found} == {"s2"}
        assert not {"Transcript", "Header", "SessionView"}.intersection(name for _, name in found)
        assert "Composer" in {name for _, name in found}


def test_a_question_in_one_session_draws_nothing_of_the_other(new_page: NewPage) -> None:
    with counted(new_page) as (page, gateway):
        gateway.ask(
            "s2",
            9,
            {
                "options": [{"optionId": "a", "name": "Allow", "kind": "allow_once"}],
                "toolCall": {"toolCallId": "t", "title": "ls"},
            },
        )
        expect(view(page, "Second").locator(".permission")).to_be_visible()
        assert "s1" not in {pane for pane, _ in drawn(page)}
