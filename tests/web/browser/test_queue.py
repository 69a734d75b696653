"""The queue in a browser: what waits, and how it is edited, moved, removed and sent now."""

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.web.browser.conftest import PHONE, WIDE, Opens, settled, until
from tests.web.browser.scenes import PERMISSION, shop
from tests.web.browser.scripted_gateway import Message, Scene, ScriptedGateway


def queued(prompt_id: str, text: str, **members: Any) -> Message:
    shown = {"text": text, "whole": True, "attached": 0, "createdAt": "2026-01-02T10:00:00Z"}
    return {"promptId": prompt_id, "identity": "ann", **shown, "mayChange": True, "mayEdit": True, **members}


THREE = [queued("a", "one"), queued("b", "two"), queued("c", "three")]


def waiting(*prompts: Message, **members: Any) -> Scene:
    """The shop, where a turn runs and these prompts wait."""
    scene = shop()
    scene.extra["s1"] = {"queue": list(prompts)}
    scene.sessions["s1"].update(turn=True, status="running", queued=len(prompts), **members)
    return scene


def rows(page: Page) -> Locator:
    return page.get_by_role("region", name="Prompts that wait").get_by_role("listitem")


def changes(gateway: ScriptedGateway) -> list[Any]:
    return [params for method, params in gateway.calls if method == "session/queue"]


def until_changed(page: Page, gateway: ScriptedGateway, *expected: Message) -> None:
    until(page, lambda: len(changes(gateway)) >= len(expected))
    assert changes(gateway) == [{"sessionId": "s1", **change} for change in expected]


def test_prompts_that_wait_are_listed_in_order_as_they_change(open_page: Opens) -> None:
    page, gateway = open_page(waiting(*THREE[:2]), "#/s/s1")
    queue = page.get_by_role("region", name="Prompts that wait")
    expect(queue.get_by_role("status")).to_have_text(
        "2 prompts wait for the end of this turn. Stop removes all that wait."
    )
    expect(rows(page)).to_have_count(2)
    expect(rows(page).first).to_contain_text("one")
    gateway.queue("s1", queued("c", "see <b>this</b>", attached=2, identity="ben", whole=False))
    expect(rows(page)).to_have_count(1)
    expect(rows(page).first).to_contain_text("see <b>this</b>… and 2 attachments · by ben")
    gateway.queue("s1")
    expect(queue).to_have_count(0)


def test_prompts_are_moved_by_the_keyboard_which_stays_on_the_button(open_page: Opens) -> None:
    page, gateway = open_page(waiting(*THREE), "#/s/s1")
    up = page.get_by_role("button", name="Move up: three")
    up.focus()
    up.press("Enter")
    until_changed(page, gateway, {"promptId": "c", "action": "move", "before": "b"})
    gateway.queue("s1", THREE[0], THREE[2], THREE[1])
    expect(rows(page).nth(1)).to_contain_text("three")
    expect(up).to_be_focused()
    page.get_by_role("button", name="Move down: one").click()
    last = {"promptId": "a", "action": "move", "before": "b"}
    until_changed(page, gateway, {"promptId": "c", "action": "move", "before": "b"}, last)
    expect(page.get_by_role("button", name="Move up: one")).to_have_attribute("aria-disabled", "true")


def test_a_prompt_is_removed_and_the_focus_stays_in_the_queue(open_page: Opens) -> None:
    page, gateway = open_page(waiting(*THREE), "#/s/s1")
    page.get_by_role("button", name="Remove: two").press("Enter")
    until_changed(page, gateway, {"promptId": "b", "action": "remove"})
    gateway.queue("s1", THREE[0], THREE[2])
    expect(rows(page)).to_have_count(2)
    expect(page.get_by_role("list", name="Prompts that wait")).to_be_focused()


def test_the_queue_leaves_the_focus_where_the_user_has_pressed_since(open_page: Opens) -> None:
    page, gateway = open_page(waiting(*THREE), "#/s/s1")
    page.get_by_role("button", name="Move up: two").click()
    until_changed(page, gateway, {"promptId": "b", "action": "move", "before": "a"})
    page.locator(".head h1").click()
    page.evaluate("document.activeElement.blur()")
    gateway.queue("s1", THREE[0], THREE[2])
    expect(rows(page)).to_have_count(2)
    settled(page)
    assert page.evaluate("document.activeElement === document.body")


def test_a_prompt_is_sent_now(open_page: Opens) -> None:
    page, gateway = open_page(waiting(*THREE), "#/s/s1")
    page.get_by_role("button", name="Send now: two").click()
    until_changed(page, gateway, {"promptId": "b", "action": "send_now"})


def test_a_prompt_that_waits_and_one_that_is_written_steer_an_agent_that_can_be_steered(open_page: Opens) -> None:
    page, gateway = open_page(waiting(*THREE, canSteer=True), "#/s/s1")
    page.get_by_role("button", name="Steer: two").click()
    until_changed(page, gateway, {"promptId": "b", "action": "steer"})
    field = page.get_by_role("textbox", name="Prompt", exact=True)
    field.fill("left")
    page.get_by_role("button", name="Steer", exact=True).click()
    expect(field).to_have_value("")
    steered = {"sessionId": "s1", "prompt": [{"type": "text", "text": "left"}]}
    until(page, lambda: ("session/steer", steered) in gateway.calls)
    gateway.change("s1", canSteer=False)
    expect(page.get_by_role("button", name="Steer")).to_have_count(0)


def test_a_prompt_is_edited_in_its_place(open_page: Opens) -> None:
    page, gateway = open_page(waiting(*THREE), "#/s/s1")
    page.get_by_role("button", name="Edit: two").click()
    field = page.get_by_role("textbox", name="Text of the prompt that waits")
    expect(field).to_be_focused()
    expect(field).to_have_value("two")
    field.fill("two and a half")
    field.press("Enter")
    until_changed(page, gateway, {"promptId": "b", "action": "edit", "text": "two and a half"})
    expect(field).to_have_count(0)
    expect(page.get_by_role("button", name="Edit: two")).to_be_focused()
    page.get_by_role("button", name="Edit: two").click()
    field.fill("never")
    field.press("Escape")
    expect(field).to_have_count(0)
    assert len(changes(gateway)) == 1


def test_what_was_typed_stays_where_the_agent_gets_the_prompt_before_it_is_saved(open_page: Opens) -> None:
    page, gateway = open_page(waiting(*THREE), "#/s/s1")
    page.get_by_role("button", name="Edit: one").click()
    field = page.get_by_role("textbox", name="Text of the prompt that waits")
    field.fill("one, but later")
    gateway.queue("s1", *THREE[1:])
    expect(page.get_by_role("alert").filter(has_text="This prompt does not wait any more")).to_be_visible()
    expect(field).to_have_value("one, but later")
    expect(page.get_by_role("button", name="Save")).to_have_count(0)
    page.get_by_role("button", name="Close").last.click()
    expect(field).to_have_count(0)


def test_a_change_that_comes_too_late_is_told_in_the_gateways_words(open_page: Opens) -> None:
    page, gateway = open_page(waiting(*THREE), "#/s/s1")

    def refuse(_: Any) -> None:
        raise ValueError("this prompt does not wait any more: the agent has it already, or it was removed")

    gateway.answers["session/queue"] = refuse
    page.get_by_role("button", name="Remove: one").click()
    expect(page.locator(".queue .error")).to_have_text(
        "This prompt does not wait any more: the agent has it already, or it was removed"
    )


def test_prompts_of_others_have_no_buttons_for_a_guest(open_page: Opens) -> None:
    others = queued("x", "from ann", mayChange=False, mayEdit=False)
    page, _ = open_page(waiting(THREE[0], others), "#/s/s1")
    expect(rows(page)).to_have_count(2)
    expect(rows(page).nth(1).get_by_role("button")).to_have_count(0)
    expect(page.get_by_role("button", name="Move down: one")).to_have_attribute("aria-disabled", "true")


def test_an_observer_sees_the_queue_and_changes_nothing(open_page: Opens) -> None:
    prompts = [{**one, "mayChange": False, "mayEdit": False} for one in THREE]
    scene = waiting(*prompts, mayControl=False)
    scene.info["role"] = "observer"
    page, _ = open_page(scene, "#/s/s1")
    expect(rows(page)).to_have_count(3)
    expect(page.get_by_role("region", name="Prompts that wait").get_by_role("button")).to_have_count(0)
    expect(page.get_by_role("region", name="Prompts that wait").get_by_role("status")).to_have_text(
        "3 prompts wait for the end of this turn."
    )


def test_on_a_phone_the_buttons_of_the_queue_are_large_enough_for_a_finger(open_page: Opens) -> None:
    page, _ = open_page(waiting(*THREE, canSteer=True), "#/s/s1", size=PHONE, touch=True)
    expect(rows(page)).to_have_count(3)
    for name in ("Steer: one", "Send now: one", "Edit: one", "Move up: one", "Move down: one", "Remove: one", "Steer"):
        box = page.get_by_role("button", name=name, exact=True).bounding_box()
        assert box is not None, name
        assert min(box["width"], box["height"]) >= 44, name
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_on_a_phone_all_of_the_editor_is_seen(open_page: Opens) -> None:
    page, _ = open_page(waiting(*THREE), "#/s/s1", size=PHONE, touch=True)
    page.get_by_role("button", name="Edit: three").click()
    expect(page.get_by_role("textbox", name="Text of the prompt that waits")).to_be_in_viewport(ratio=1)
    expect(page.get_by_role("button", name="Save")).to_be_in_viewport(ratio=1)


def test_on_a_phone_a_question_leaves_of_the_queue_the_number(open_page: Opens) -> None:
    page, gateway = open_page(waiting(*THREE), "#/s/s1", size=PHONE, touch=True)
    expect(rows(page)).to_have_count(3)
    gateway.ask("s1", 9, PERMISSION)
    expect(rows(page).first).to_be_hidden()
    expect(page.locator(".queue")).to_contain_text("3 prompts wait")


@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
def test_a_long_queue_leaves_room_for_the_transcript(open_page: Opens, size: tuple[int, int]) -> None:
    prompts = [queued(f"p{number}", f"number {number} " + "x" * 150) for number in range(20)]
    page, _ = open_page(waiting(*prompts), "#/s/s1", size=size, touch=size == PHONE)
    expect(rows(page)).to_have_count(20)
    box = page.locator(".scroller").bounding_box()
    assert box is not None
    assert box["height"] >= 60


def test_what_waits_for_the_connection_is_not_sent_as_another_person_and_that_is_told(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    field = page.get_by_role("textbox", name="Prompt")
    expect(field).to_be_visible()
    gateway.open_sockets = False
    gateway.drop()
    expect(page.locator(".connection.is-away")).to_be_visible()
    field.fill("for ann alone")
    field.press("Enter")
    expect(page.locator(".sending")).to_contain_text("for ann alone")
    gateway.scene.info = {**gateway.scene.info, "identity": "ben"}
    gateway.open_sockets = True
    expect(page.locator(".toast")).to_contain_text("Someone else is signed in now.")
    expect(field).to_be_visible()
    assert [params for method, params in gateway.calls if method == "session/prompt"] == []
    expect(page.locator(".sending")).to_have_count(0)


def test_what_waits_for_a_time_or_a_person_is_sent_or_removed_and_what_is_lost_only_removed(open_page: Opens) -> None:
    scene = waiting(
        queued("a", "one", state="queued"),
        queued("b", "two", state="timed", due="2026-01-02T16:00:00Z", mayEdit=False),
        queued("c", "three", state="held", why="no token", mayEdit=False),
        queued("d", "four", state="lost", mayEdit=False),
    )
    page, gateway = open_page(scene, "#/s/s1")
    queue = page.get_by_role("region", name="Prompts that wait")
    expect(queue.get_by_role("status")).to_have_text("4 prompts wait. Stop removes those for this turn.")
    for row, words in enumerate(("one", "to be sent", "not sent: no token", "not sent again")):
        expect(rows(page).nth(row)).to_contain_text(words)
    expect(page.get_by_role("button", name="Move up")).to_have_count(1)
    expect(page.get_by_role("button", name="Send now: four")).to_have_count(0)
    page.get_by_role("button", name="Send now: three").click()
    page.get_by_role("button", name="Remove: four").click()
    until_changed(page, gateway, {"promptId": "c", "action": "send_now"}, {"promptId": "d", "action": "remove"})


def test_a_prompt_is_sent_with_the_time_that_a_person_writes_or_at_the_end_of_the_limit(open_page: Opens) -> None:
    page, gateway = open_page(waiting(limitedUntil="2126-01-02T16:00:00Z"), "#/s/s1")
    for at in ("06:00", "limit"):
        page.get_by_role("textbox", name="Prompt").fill("go on")
        page.get_by_role("button", name="Later").click()
        if at == "limit":
            page.get_by_role("button", name="When the limit ends").click()
        else:
            page.get_by_placeholder("06:00").fill(at)
        page.get_by_label("even after a restart").check()
        page.get_by_role("button", name="Send at that time").click()
    until(page, lambda: len([it for it in gateway.calls if it[0] == "session/prompt"]) == 2)
    sent = [params["queue"] for method, params in gateway.calls if method == "session/prompt"]
    assert [(it["at"], it["auto"], isinstance(it["offset"], int)) for it in sent] == [
        ("06:00", True, True),
        ("limit", True, True),
    ]
