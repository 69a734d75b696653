"""Notifications of this browser: what is told, by the page and by push, and the dialog and the menu that choose it."""

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.web.browser.conftest import Opens, until
from tests.web.browser.scenes import shop
from tests.web.browser.scripted_gateway import ScriptedGateway

# Headless browsers show no notification, and refuse the permission. What is left is the registration under the policy.
COLLECT_NOTIFICATIONS = """
Object.defineProperty(Notification, "permission", { get: () => "granted" });
Object.defineProperty(document, "hidden", { get: () => true });
window.shown = [];
ServiceWorkerRegistration.prototype.showNotification = async function (title, { body, tag, data }) {
  window.shown.push({ title, body, tag, data, worker: this.active.scriptURL, close: () => window.shown.splice(0) });
};
ServiceWorkerRegistration.prototype.getNotifications = async ({ tag }) => window.shown.filter((it) => it.tag === tag);
null;
"""


def test_a_question_in_the_background_is_notified_by_the_service_worker_until_it_is_decided(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    expect(page.locator(".group").first).to_be_visible()
    page.evaluate(COLLECT_NOTIFICATIONS)
    gateway.ask("s1", "q1", {"toolCall": {"toolCallId": "t", "title": "Drop the table"}, "options": []})
    until(page, lambda: bool(page.evaluate("shown.length")))
    body, fragment, worker = page.evaluate("[shown[0].body, shown[0].data.hash, shown[0].worker]")
    assert (body, fragment) == ("Drop the table", "#/s/s1/r/q1")
    assert worker == f"{page.url.partition('#')[0]}worker.js"
    gateway.resolve("s1", "q1", "bob", "once")
    until(page, lambda: not page.evaluate("shown.length"))


# A browser with a push service.
WITH_PUSH = """
Object.defineProperty(Notification, "permission", { get: () => sessionStorage.allowed ?? "default" });
Notification.requestPermission = async () => (sessionStorage.allowed = "granted");
const bytes = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer;
const manager = {
  getSubscription: async () => window.subscription ?? null,
  subscribe: async ({ applicationServerKey }) => (window.subscription = {
    endpoint: `https://fcm.googleapis.com/fcm/send/${applicationServerKey}`,
    getKey: () => bytes("AAAA"),
    unsubscribe: async () => (window.subscription = null),
  }),
};
Object.defineProperty(ServiceWorkerRegistration.prototype, "pushManager", { get: () => manager });
null;
"""


class Subscriptions:
    """A gateway that keeps the subscription of one browser."""

    def __init__(self, gateway: ScriptedGateway) -> None:
        self.state: dict[str, Any] = {"key": "KEY", "subscribed": False, "quiet": None, "session": None}
        self.gateway = gateway
        gateway.answers |= {"push/get": lambda _: self.state, "push/subscribe": self.subscribe}

    def subscribe(self, params: dict[str, Any]) -> dict[str, bool]:
        self.state |= {"subscribed": True, "quiet": params.get("quiet"), "session": params.get("session")}
        self.state["done"] = params.get("done")
        return {"success": True}


def with_push(page: Page, gateway: ScriptedGateway) -> Subscriptions:
    """Give the page a push service, also after it is loaded again."""
    subscriptions = Subscriptions(gateway)
    page.add_init_script(WITH_PUSH)
    page.reload()
    return subscriptions


def menu_item(page: Page, name: str) -> Locator:
    """Open the menu of the session, and return an item."""
    page.get_by_role("button", name="More").click()
    return page.get_by_role("menuitem", name=name, exact=True)


WITHOUT_PUSH = "delete window.PushManager;"

TELL = "Tell me when it is done"
TELL_NO_MORE = "Do not tell me when it is done"


def test_notifications_are_turned_on_and_off_tested_and_quiet_at_night(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    state: dict[str, object] = {"key": "KEY", "subscribed": False, "quiet": None, "session": None}

    def subscribe(params: dict[str, object]) -> dict[str, bool]:
        state.update(subscribed=True, quiet=params.get("quiet"), session=params.get("session"))
        return {"success": True}

    def unsubscribe(params: dict[str, object]) -> dict[str, bool]:
        state.update(subscribed=False)
        return {"success": True}

    def fail(params: dict[str, object]) -> None:
        raise RuntimeError("fcm.googleapis.com answers 403")

    gateway.answers |= {"push/get": lambda _: state, "push/subscribe": subscribe}
    gateway.answers |= {"push/unsubscribe": unsubscribe, "push/test": fail}
    page.evaluate(WITH_PUSH)
    page.get_by_role("button", name="Notifications").click()
    page.get_by_role("button", name="Turn on").click()
    expect(page.get_by_role("button", name="Turn off")).to_be_visible()
    page.get_by_role("button", name="Send a test notification").click()
    expect(page.get_by_role("alert")).to_have_text("fcm.googleapis.com answers 403")
    page.get_by_role("checkbox", name="Nothing at night").check()
    page.get_by_label("From").fill("23:15")
    until(page, lambda: isinstance(state["quiet"], dict) and state["quiet"]["start"] == 23 * 60 + 15)
    told = [params for method, params in gateway.calls if method == "push/subscribe"]
    assert {params["endpoint"] for params in told} == {"https://fcm.googleapis.com/fcm/send/KEY"}
    quiet = state["quiet"]
    assert isinstance(quiet, dict)
    assert (quiet["end"], {*quiet}) == (7 * 60, {"start", "end", "offset", "zone"})
    page.get_by_label("Questions of").select_option("s1")
    until(page, lambda: state["session"] == "s1" and state["quiet"] == quiet)
    gateway.answers["push/subscribe"] = fail
    page.get_by_role("checkbox", name="Nothing at night").click()
    expect(page.get_by_role("alert")).to_have_text("fcm.googleapis.com answers 403")
    expect(page.get_by_role("checkbox", name="Nothing at night")).to_be_checked()
    page.get_by_role("button", name="Turn off").click()
    expect(page.get_by_role("button", name="Turn on")).to_be_visible()
    assert [method for method, _ in gateway.calls].count("push/unsubscribe") == 1
    assert page.evaluate("subscription") is None


def test_a_session_is_chosen_in_its_menu_to_be_told_when_it_is_done_until_that_is_taken_back(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    subscriptions = with_push(page, gateway)
    menu_item(page, TELL).click()
    expect(page.locator(".toast")).to_have_text("You will be told when it is done.")
    assert subscriptions.state["done"] == {"after": None, "sessions": ["s1"]}
    expect(menu_item(page, TELL_NO_MORE)).to_be_visible()
    page.reload()
    expect(menu_item(page, TELL_NO_MORE)).to_be_visible()
    page.keyboard.press("Escape")
    page.evaluate("location.hash = '#/s/s3'")
    expect(page.locator(".head h1")).to_have_text("Move the settings page to the new form library")
    expect(menu_item(page, TELL)).to_be_visible()
    page.keyboard.press("Escape")
    page.evaluate("location.hash = '#/s/s1'")
    expect(page.locator(".head h1")).to_have_text("Totals of a basket below zero")
    menu_item(page, TELL_NO_MORE).click()
    expect(page.locator(".toast")).to_have_text("You will not be told when it is done.")
    assert subscriptions.state["done"] is None
    expect(menu_item(page, TELL)).to_be_visible()


def test_without_push_the_page_says_that_it_tells_only_while_it_is_open(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    page.add_init_script(COLLECT_NOTIFICATIONS + WITHOUT_PUSH)
    page.reload()
    menu_item(page, TELL).click()
    expect(page.locator(".toast")).to_have_text("You will be told when it is done, while this page is open.")


def test_where_the_browser_refuses_notifications_a_session_is_not_chosen(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    menu_item(page, TELL).click()
    expect(page.locator(".toast.is-error")).to_contain_text("This browser blocks notifications of this page.")
    expect(menu_item(page, TELL)).to_be_visible()


@pytest.mark.parametrize("viewer", ["guest", "observer", "without notifications"])
def test_the_end_of_a_turn_is_not_offered_to(open_page: Opens, viewer: str) -> None:
    scene = shop()
    if viewer == "guest":
        scene.info |= {"guest": True, "session": "s1"}
    elif viewer == "observer":
        scene.info["role"] = "observer"
        scene.sessions["s1"]["mayControl"] = False
    page, _ = open_page(scene, "#/s/s1")
    if viewer == "without notifications":
        page.add_init_script("delete window.Notification")
        page.reload()
    expect(menu_item(page, "Find in this session")).to_be_visible()
    expect(page.get_by_role("menuitem", name=TELL)).to_have_count(0)


def test_turns_of_all_sessions_are_told_from_a_duration_on(open_page: Opens) -> None:
    page, gateway = open_page(shop())
    subscriptions = with_push(page, gateway)
    page.get_by_role("button", name="Notifications").click()
    turns = page.get_by_label("Ends of turns in")
    expect(turns).to_have_count(0)
    page.get_by_role("button", name="Turn on").click()
    expect(turns.locator("option:checked")).to_have_text("chosen sessions only")
    turns.select_option("all sessions, 5 min or longer")
    until(page, lambda: subscriptions.state["done"] == {"after": 5, "sessions": []})
    page.reload()
    page.get_by_role("button", name="Notifications").click()
    expect(turns.locator("option:checked")).to_have_text("all sessions, 5 min or longer")
    turns.select_option("all sessions")
    until(page, lambda: subscriptions.state["done"] == {"after": 0, "sessions": []})
    turns.select_option("chosen sessions only")
    until(page, lambda: subscriptions.state["done"] is None)


@pytest.mark.parametrize("size", [(360, 640), (1280, 800)], ids=["phone", "wide"])
def test_the_chosen_turns_are_written_out_in_the_dialog(open_page: Opens, size: tuple[int, int]) -> None:
    page, _ = open_page(shop(), size=size, touch=size[0] < 700)
    page.add_init_script(COLLECT_NOTIFICATIONS)
    page.reload()
    page.get_by_role("button", name="Notifications").click()
    turns = page.get_by_label("Ends of turns in")
    room = turns.evaluate("one => one.clientWidth - 12 - 24")
    widths = turns.evaluate("""one => [...one.options].map(({ text }) => {
      const pen = document.createElement("canvas").getContext("2d");
      pen.font = getComputedStyle(one).font;
      return pen.measureText(text).width;
    })""")
    assert max(widths) <= room


def test_the_end_of_a_chosen_turn_is_notified_in_the_background_until_the_next_one_begins(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    page.add_init_script(COLLECT_NOTIFICATIONS + WITHOUT_PUSH)
    page.reload()
    menu_item(page, TELL).click()
    expect(page.locator(".toast")).to_contain_text("You will be told")
    failure = {
        "error": {"code": -32603, "message": "the service is overloaded"},
        "seconds": 3,
        "at": "2026-01-01T10:00:00Z",
    }
    for name in ("s3", "s1"):
        gateway.change(name, turn=False, status="error", lastTurn=failure)
    ends = 'shown.filter(({ tag }) => tag.startsWith("turn ")).map((it) => [it.title, it.body, it.data.hash])'
    failed = ["Totals of a basket below zero has failed", "The service is overloaded", "#/s/s1"]
    until(page, lambda: page.evaluate(ends) == [failed])
    gateway.change("s1", turn=True, status="running")
    until(page, lambda: page.evaluate(ends) == [])
