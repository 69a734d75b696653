"""The list of sessions in a browser, the state of each, and how it calls for attention."""

import re

import pytest
from playwright.sync_api import expect

from tests.web.browser.conftest import PHONE, TABLET, WIDE, Opens, stop_timers, until
from tests.web.browser.scenes import CWD, PERMISSION, client, fleet, session, shop
from tests.web.browser.scripted_gateway import Scene


def test_an_address_of_no_session_says_so_without_a_state_and_a_link_to_share(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/nope")
    expect(page.get_by_role("alert")).to_contain_text("There is no such session.")
    expect(page.locator(".head .state")).to_have_count(0)
    expect(page.get_by_role("button", name="Share")).to_have_count(0)
    page.get_by_role("main").get_by_role("link", name="All sessions").click()
    expect(page.get_by_text("Choose a session from the list")).to_be_visible()


def test_messages_of_the_page_are_below_each_other_with_the_name_of_their_session(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    stop_timers(page, 5000)
    for name in ("one", "two"):
        gateway.ask("s1", name, {"toolCall": {"toolCallId": name, "title": name}, "options": []})
    expect(page.locator(".permission-steps")).to_be_visible()
    for name in ("one", "two"):
        gateway.resolve("s1", name, "bob", name)
    toasts = page.locator(".toast")
    name = gateway.scene.sessions["s1"]["title"]
    expect(toasts).to_have_text([f"In “{name}”: bob has decided: {outcome}." for outcome in ("one", "two")])
    boxes = [toast.bounding_box() or {} for toast in toasts.all()]
    assert 0 < boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    expect(toasts.last).to_be_in_viewport(ratio=1)
    toasts.first.get_by_role("button", name="Dismiss").click()
    expect(toasts).to_have_text([f"In “{name}”: bob has decided: two."])


@pytest.mark.firefox
def test_sessions_that_need_the_user_come_first_and_past_ones_last(open_page: Opens) -> None:
    page, _ = open_page(shop())
    expect(page.locator(".group h2")).to_have_text(["Needs you", "Live", "Earlier"])
    expect(page.locator(".group").first.locator(".session-title")).to_have_text(["Remove the old build"])
    expect(page.locator(".group").nth(1).locator(".session-title").first).to_have_text("Totals of a basket below zero")


def test_a_session_has_its_age_agent_workspace_and_state(open_page: Opens) -> None:
    page, _ = open_page(shop())
    expect(page.get_by_role("link", name="Move the settings page")).to_contain_text("14 min · OpenCode · shop")
    expect(page.get_by_role("link", name="Totals of a basket")).to_contain_text("Working")
    expect(page.get_by_role("link", name="nightly build")).to_contain_text("Error")
    expect(page.get_by_role("link", name="Flaky test")).to_contain_text("Agent ended")


def test_only_what_needs_the_user_is_amber(open_page: Opens) -> None:
    page, _ = open_page(shop())
    expect(page.locator(".session").first).to_be_visible()
    amber = page.evaluate("""() => {
      const amber = getComputedStyle(document.querySelector(".session.is-waiting .state")).color;
      const all = [...document.querySelectorAll("body *")].filter((one) => getComputedStyle(one).color === amber);
      return all.filter((one) => !one.closest(".is-waiting")).length;
    }""")
    assert amber == 0


def test_a_question_brings_a_session_to_the_front_and_into_the_title_and_icon_of_the_tab(open_page: Opens) -> None:
    scene = shop()
    scene.sessions = {name: one for name, one in scene.sessions.items() if name != "s2"}
    page, gateway = open_page(scene)
    expect(page).to_have_title("acp-gateway")
    gateway.ask("s3", 1, PERMISSION)
    expect(page.locator(".group.is-waiting .session-title")).to_have_text(
        "Move the settings page to the new form library"
    )
    expect(page).to_have_title("(1) acp-gateway")
    expect(page.locator("link[rel=icon]")).to_have_attribute("href", re.compile("/icon-waiting.svg$"))
    gateway.resolve("s3", 1, "bob", "No")
    expect(page).to_have_title("acp-gateway")
    expect(page.locator("link[rel=icon]")).to_have_attribute("href", re.compile("/icon.svg$"))


def test_an_observer_is_not_called_for_what_it_cannot_decide(open_page: Opens) -> None:
    scene = shop()
    scene.info["role"] = "observer"
    for one in scene.sessions.values():
        one["mayControl"] = False
    page, _ = open_page(scene)
    expect(page.get_by_role("link", name="Remove the old build")).to_contain_text("Waits for a decision")
    expect(page.locator(".is-waiting")).to_have_count(0)
    expect(page).to_have_title("acp-gateway")
    expect(page.get_by_role("button", name="New")).to_have_count(0)


def test_the_filter_finds_words_of_title_agent_and_folder(open_page: Opens) -> None:
    page, _ = open_page(shop())
    field = page.get_by_role("searchbox", name="Filter sessions")
    field.fill("opencode FORM")
    expect(page.locator(".session-title")).to_have_text(["Move the settings page to the new form library"])
    field.fill("nothing like this")
    expect(page.get_by_text("No session matches")).to_be_visible()
    field.fill("")
    expect(page.locator(".session")).to_have_count(7)


def test_archived_sessions_are_shown_when_asked_for(open_page: Opens) -> None:
    page, _ = open_page(shop())
    button = page.get_by_role("button", name="Show archived sessions")
    expect(page.get_by_text("First steps")).to_have_count(0)
    button.click()
    expect(page.locator(".group").last.locator("h2")).to_have_text("Archived")
    expect(page.get_by_text("First steps")).to_be_visible()
    page.get_by_role("button", name="Hide archived sessions").click()
    expect(page.get_by_text("First steps")).to_have_count(0)


def test_sessions_on_an_agents_disk_are_shown_when_asked_for(open_page: Opens) -> None:
    page, gateway = open_page(shop())

    def listed(params: dict[str, str]) -> dict[str, object]:
        first = [{"id": "d1", "title": "On disk <b>"}, {"id": "s1", "title": "In the list"}]
        found = first if "cursor" not in params else [{"id": "d2", "title": None, "cwd": "/srv/other"}]
        more = {} if "cursor" in params else {"nextCursor": "next"}
        entries = [{"agentType": params["agentType"], "cwd": "/srv", "updatedAt": None, **one} for one in found]
        return {"sessions": entries, **more}

    gateway.answers["agents/sessions"] = listed
    gateway.scene.agents[1:] = []
    page.reload()
    page.get_by_role("button", name="Show sessions on disk").click()
    group = page.locator(".group", has=page.get_by_role("heading", name="On disk", exact=True))
    expect(group.locator(".session-title")).to_have_text(["On disk <b>"])
    group.get_by_role("button", name="Show more of them").click()
    expect(group.locator(".session-title")).to_have_text(["On disk <b>", "other"])
    expect(group.get_by_role("button")).to_have_count(0)
    page.get_by_role("searchbox", name="Filter sessions").fill("on disk")
    expect(group.locator(".session-title")).to_have_text(["On disk <b>"])
    gateway.scene.sessions["d1"] = {**gateway.scene.sessions["s1"], "id": "d1", "title": "On disk"}
    group.get_by_role("link").click()
    until(page, lambda: any(method == "session/get" and it["sessionId"] == "d1" for method, it in gateway.calls))
    expect(page.get_by_role("main").get_by_role("heading", name="On disk", exact=True)).to_be_visible()


def test_of_two_agents_with_one_id_on_disk_the_session_of_the_chosen_one_is_opened(open_page: Opens) -> None:
    # Where one is open, Alt would open another one beside it: not here, where the agent has to be told first.
    page, gateway = open_page(shop(), "#/s/s1")
    names = [agent["name"] for agent in gateway.scene.agents[:2]]
    gateway.scene.agents[2:] = []

    def listed(params: dict[str, str]) -> dict[str, object]:
        return {"sessions": [{"id": "d1", "agentType": params["agentType"], "title": params["agentType"]}]}

    gateway.answers["agents/sessions"] = listed
    page.reload()
    page.get_by_role("button", name="Show sessions on disk").click()
    group = page.locator(".group", has=page.get_by_role("heading", name="On disk", exact=True))
    expect(group.locator(".session-title")).to_have_text(names)
    gateway.scene.sessions["d1"] = {**gateway.scene.sessions["s1"], "id": "d1", "title": "On disk"}
    group.get_by_role("link").first.click(modifiers=["Alt"])
    expect(page.get_by_role("main").get_by_role("heading", name="On disk", exact=True)).to_be_visible()
    expect(page.locator(".view")).to_have_count(1)
    asked = [it for method, it in gateway.calls if method == "session/get" and it["sessionId"] == "d1"]
    assert asked[0]["agentType"] == names[0]


def test_an_agent_that_cannot_list_its_disk_is_named_with_its_error(open_page: Opens) -> None:
    page, gateway = open_page(shop())

    def failing(params: dict[str, str]) -> dict[str, object]:
        raise ValueError("the agent could not be started")

    gateway.answers["agents/sessions"] = failing
    page.get_by_role("button", name="Show sessions on disk").click()
    expect(page.get_by_text("The agent could not be started").first).to_be_visible()
    gateway.answers["agents/sessions"] = lambda _: {"sessions": []}
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_text("No other sessions.")).to_be_visible()
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


@pytest.mark.firefox
def test_a_session_is_archived_and_deleted_from_its_menu(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s3")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Archive").click()
    until(page, lambda: ("session/archive", {"sessionId": "s3", "archived": True}) in gateway.calls)
    expect(page.get_by_role("link", name="Move the settings page")).to_have_count(0)
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Take out of the archive").click()
    expect(page.get_by_role("link", name="Move the settings page")).to_be_visible()
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete…").click()
    expect(page.get_by_role("dialog")).to_contain_text("This can't be undone.")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_text("Choose a session from the list")).to_be_visible()
    assert ("session/delete", {"sessionId": "s3"}) in gateway.calls


def test_a_session_that_another_client_removes_leaves_the_list(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    expect(page.locator(".session")).to_have_count(7)
    gateway.remove("s5")
    expect(page.locator(".session")).to_have_count(6)


def test_a_new_session_is_started_with_agent_workspace_and_title_and_opened(open_page: Opens) -> None:
    scene = shop()
    page, gateway = open_page(scene)

    def create(params: dict[str, str]) -> dict[str, str]:
        scene.sessions["new"] = session("new", params["title"])
        return {"sessionId": "new"}

    gateway.answers["session/new"] = create
    page.get_by_role("button", name="New", exact=True).click()
    page.get_by_label("OpenCode").check()
    page.get_by_label("site").check()
    page.get_by_label("Title").fill("Try this")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="Try this", level=1)).to_be_visible()
    until(page, lambda: page.url.endswith("#/s/new"))
    expect(page.get_by_role("textbox", name="Prompt")).to_be_focused()
    params = {"agentType": "opencode", "cwd": "/home/ann/work/site", "title": "Try this"}
    assert ("session/new", params) in gateway.calls


def test_a_new_session_gets_a_worktree_with_a_branch_of_this_name_or_any(open_page: Opens) -> None:
    scene = shop()
    page, gateway = open_page(scene)
    scene.sessions["new"] = session("new", "Here")
    gateway.answers["session/new"] = lambda _: {"sessionId": "new"}
    for name in ("fix/it", ""):
        page.get_by_role("button", name="New", exact=True).click()
        dialog = page.get_by_role("dialog", name="New session")
        expect(dialog.get_by_role("textbox", name="Branch")).to_have_count(0)
        dialog.get_by_label("In a new worktree").check()
        dialog.get_by_role("textbox", name="Branch").fill(name)
        dialog.get_by_role("button", name="Start").click()
        expect(dialog).to_have_count(0)
    asked = [params.get("worktree") for method, params in gateway.calls if method == "session/new"]
    assert asked == ["fix/it", ""]


@pytest.mark.firefox
def test_the_first_prompt_of_a_new_session_is_sent_and_gives_it_a_title(open_page: Opens) -> None:
    scene = shop()
    page, gateway = open_page(scene)

    def create(params: dict[str, str]) -> dict[str, str]:
        scene.sessions["new"] = session("new", params["title"])
        return {"sessionId": "new"}

    gateway.answers["session/new"] = create
    page.get_by_role("button", name="New", exact=True).click()
    field = page.get_by_label("First prompt")
    field.fill("Find the slow query\nand fix it")
    field.press("Control+Enter")
    expect(page.get_by_role("heading", name="Find the slow query", level=1)).to_be_visible()
    prompt = [{"type": "text", "text": "Find the slow query\nand fix it"}]
    until(page, lambda: ("session/prompt", {"sessionId": "new", "prompt": prompt}) in gateway.calls)


def test_an_agent_that_cannot_be_started_is_said_in_the_dialog(open_page: Opens) -> None:
    page, gateway = open_page(shop())

    def fail(_: object) -> None:
        raise ValueError("the agent ended with status 1: no API key")

    gateway.answers["session/new"] = fail
    page.get_by_role("button", name="New", exact=True).click()
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("The agent ended with status 1: no API key")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_gateway_without_sessions_says_how_to_begin(open_page: Opens) -> None:
    scene = Scene([], {})
    scene.agents = [{"name": "a", "title": "A", "default": True, "workspaces": [{"name": "shop", "path": CWD}]}]
    page, _ = open_page(scene)
    expect(page.get_by_text("No sessions yet.")).to_be_visible()


def test_presence_names_the_other_clients_and_what_they_may(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    presence = page.locator(".presence")
    expect(presence).to_have_text("ann, editor; bob looks on")
    away = {**client("ann", "controller", "editor"), "presence": "away"}
    gateway.change("s1", clients=[client("ann", "controller", "browser", you=True), away])
    expect(presence).to_have_text("ann, editor (away)")


@pytest.mark.parametrize("size", [(320, 568), PHONE, TABLET, WIDE])
@pytest.mark.parametrize("path", ["", "#/s/s1", "#/s/s2"])
def test_nothing_is_wider_than_the_window(open_page: Opens, size: tuple[int, int], path: str) -> None:
    page, _ = open_page(shop(), path, size=size, touch=size[0] < 720)
    expect(page.locator(".row" if path else ".session").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    wide = page.evaluate("""() => [...document.querySelectorAll("button, a, h1, textarea, .permission")]
      .filter((one) => one.getClientRects().length > 0 && !one.closest(".choices"))
      .filter((one) => one.getBoundingClientRect().right > innerWidth + 0.5).map((one) => one.outerHTML)""")
    assert wide == []


def test_on_a_phone_the_list_and_a_session_take_turns(open_page: Opens) -> None:
    page, _ = open_page(shop(), size=PHONE, touch=True)
    page.get_by_role("link", name="Totals of a basket").tap()
    expect(page.locator(".transcript")).to_be_visible()
    expect(page.get_by_role("navigation", name="Sessions")).to_have_count(0)
    page.get_by_role("link", name="All sessions").tap()
    expect(page.get_by_role("navigation", name="Sessions")).to_be_visible()
    expect(page.locator(".transcript")).to_have_count(0)


def test_everything_is_reached_by_keyboard_with_a_visible_focus(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    expect(page.locator(".row").last).to_be_visible()
    seen: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        name, outline = page.evaluate("""() => {
          const one = document.activeElement;
          const style = getComputedStyle(one.tagName === "TEXTAREA" ? one.closest(".composer-field") : one);
          const visible = style.outlineStyle !== "none" || style.boxShadow !== "none";
          return [one.tagName + " " + (one.getAttribute("aria-label") ?? one.textContent).trim().slice(0, 30), visible];
        }""")
        if name.startswith("BODY"):
            break
        assert outline, name
        seen.append(name)
    for wanted in (
        "BUTTON New",
        "INPUT Filter sessions",
        "DIV Transcript",
        "TEXTAREA Prompt",
        "BUTTON Stop",
        "BUTTON Share",
    ):
        assert wanted in seen


def test_on_a_phone_the_button_that_starts_a_session_is_in_view(open_page: Opens) -> None:
    page, _ = open_page(shop(), size=PHONE, touch=True)
    page.get_by_role("button", name="New", exact=True).tap()
    expect(page.get_by_role("button", name="Start")).to_be_in_viewport(ratio=1)


AGENTS = [
    {"name": "claude", "title": "Claude", "default": True, "workspaces": [{"name": "shop", "path": CWD}]},
    {"name": "opencode", "title": "OpenCode", "default": False, "workspaces": [{"name": "shop", "path": CWD}]},
]


def test_a_link_for_a_new_session_opens_its_dialog_with_the_agent_chosen(open_page: Opens) -> None:
    scene = shop()
    scene.agents = AGENTS
    page, gateway = open_page(scene, "#/new/opencode")
    gateway.answers["session/new"] = lambda _: {"sessionId": "s1"}
    dialog = page.get_by_role("dialog", name="New session")
    expect(dialog.get_by_role("radio", name="OpenCode")).to_be_checked()
    dialog.get_by_role("button", name="Start").click()
    expect(dialog).to_have_count(0)
    until(page, lambda: page.url.endswith("#/s/s1"))
    assert [params["agentType"] for method, params in gateway.calls if method == "session/new"] == ["opencode"]


def test_the_dialog_of_a_link_for_a_new_session_can_be_left(open_page: Opens) -> None:
    scene = shop()
    scene.agents = AGENTS
    page, _ = open_page(scene, "#/new/other")
    dialog = page.get_by_role("dialog", name="New session")
    expect(dialog.get_by_role("radio", name="Claude")).to_be_checked()
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    until(page, lambda: page.url.endswith("#/"))


def test_an_observer_gets_no_dialog_from_a_link_for_a_new_session(open_page: Opens) -> None:
    scene = shop()
    scene.info["role"] = "observer"
    page, _ = open_page(scene, "#/new/claude")
    expect(page.locator(".session").first).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_long_list_is_drawn_in_parts_searched_as_a_whole_and_says_what_it_lacks(open_page: Opens) -> None:
    scene = Scene([session(f"s{number}", f"Task {number}", minutes=number, live=False) for number in range(700)], {})
    scene.more = 1200
    page, _ = open_page(scene)
    rows, further = page.locator(".session"), page.locator(".further")
    expect(rows).to_have_count(300)
    expect(further).to_have_text("Show 300 of 400 more")
    further.click()
    expect(rows).to_have_count(600)
    expect(further).to_have_text("Show 100 of 100 more")
    further.click()
    expect(rows).to_have_count(700)
    expect(further).to_have_text("… and 1200 more, used longer ago")
    page.get_by_role("searchbox").fill("s699")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Task 699")


def test_a_session_is_renamed_by_the_menu_and_the_palette(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")

    def rename(params: dict[str, str]) -> dict[str, bool]:
        gateway.scene.sessions["s1"]["title"] = params["title"]
        return {"success": True}

    gateway.answers["session/set_title"] = rename
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Rename…").click()
    title = page.get_by_role("textbox", name="Title")
    expect(title).to_have_value("Totals of a basket below zero")
    title.fill(" ")
    expect(page.get_by_role("dialog").get_by_role("button", name="Rename")).to_be_disabled()
    title.fill(" Baskets ")
    title.press("Enter")
    expect(page.locator(".head h1")).to_have_text("Baskets")
    expect(page.locator(".session[aria-current] .session-title")).to_have_text("Baskets")
    expect(page).to_have_title(re.compile(r"^\(1\) Baskets "))

    def failing(_: object) -> None:
        raise ValueError("the disk is full")

    gateway.answers["session/set_title"] = failing
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Find a session or a command").fill("rename")
    page.keyboard.press("Enter")
    title.fill("Other")
    title.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("The disk is full")
    expect(page.locator(".head h1")).to_have_text("Baskets")


def test_a_dialog_about_a_session_is_closed_where_another_one_is_opened(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s3")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Rename…").click()
    expect(page.get_by_role("textbox", name="Title")).to_be_focused()
    # As a notification does.
    page.goto(f"{gateway.url}#/s/s1")
    expect(page.locator(".head h1")).to_have_text("Totals of a basket below zero")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_session_of_another_machine_is_renamed_there(open_page: Opens) -> None:
    page, gateway = open_page(fleet(), "#/s/gpu1%2F1")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Rename…").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("A better name")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    expect(page.locator(".head h1")).to_have_text("A better name")
    assert ("session/set_title", {"sessionId": "gpu1/1", "title": "A better name"}) in gateway.calls


def test_a_session_is_forked_only_where_the_agent_can(open_page: Opens) -> None:
    scene = shop()
    scene.extra["s1"] = {"canFork": True}
    page, gateway = open_page(scene, "#/s/s1")
    gateway.answers["session/fork"] = lambda _: {"sessionId": "s3"}
    expect(page.locator(".row").last).to_be_visible()
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Fork").click()
    expect(page).to_have_url(re.compile("#/s/s3$"))
    assert ("session/fork", {"sessionId": "s1"}) in gateway.calls
    expect(page.locator(".head h1")).to_contain_text("Move the settings page")
    page.get_by_role("button", name="More").click()
    expect(page.get_by_role("menuitem", name="Rename…")).to_be_visible()
    expect(page.get_by_role("menuitem", name="Fork")).to_have_count(0)
