"""The composer in a browser: keys, commands, mentions, attachments, drafts, and what is chosen for a session."""

import base64
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import PHONE, Opens, until
from tests.web.browser.scenes import CWD, picture, shop
from tests.web.browser.scripted_gateway import ScriptedGateway

COARSE = "(hover: none) and (pointer: coarse)"


def prompts(gateway: ScriptedGateway) -> list[Any]:
    return [params["prompt"] for method, params in gateway.calls if method == "session/prompt"]


def calls(gateway: ScriptedGateway, method: str) -> list[Any]:
    return [params for name, params in gateway.calls if name == method]


def field_of(page: Page) -> Any:
    return page.get_by_role("textbox", name="Prompt")


def until_called(page: Page, gateway: ScriptedGateway, method: str) -> None:
    until(page, lambda: len(calls(gateway, method)) > 0)


@pytest.mark.firefox
def test_enter_sends_and_shift_enter_makes_a_line(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    field = field_of(page)
    field.press_sequentially("one")
    field.press("Shift+Enter")
    field.press_sequentially("two")
    expect(field).to_have_value("one\ntwo")
    field.press("Enter")
    expect(field).to_have_value("")
    until_called(page, gateway, "session/prompt")
    assert prompts(gateway) == [[{"type": "text", "text": "one\ntwo"}]]


@pytest.mark.firefox
@pytest.mark.parametrize("event", [{"isComposing": True}, {"keyCode": 229}], ids=["elsewhere", "safari"])
def test_the_enter_of_an_input_method_sends_nothing(open_page: Opens, event: dict[str, object]) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    field = field_of(page)
    field.fill("nihon")
    field.dispatch_event("keydown", {"key": "Enter", "bubbles": True, "cancelable": True, **event})
    expect(field).to_have_value("nihon")
    field.press("Enter")
    until_called(page, gateway, "session/prompt")
    assert prompts(gateway) == [[{"type": "text", "text": "nihon"}]]


def test_on_a_touch_screen_enter_makes_a_line_and_the_button_sends(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1", size=PHONE, touch=True)
    field = field_of(page)
    field.press_sequentially("one")
    field.press("Enter")
    expect(field).to_have_value("one\n")
    assert prompts(gateway) == []
    page.get_by_role("button", name="Send after this turn").tap()
    expect(field).to_have_value("")
    field.press_sequentially("two")
    field.press("Control+Enter")
    expect(field).to_have_value("")
    until(page, lambda: len(prompts(gateway)) == 2)
    assert prompts(gateway) == [[{"type": "text", "text": "one\n"}], [{"type": "text", "text": "two"}]]


def test_nothing_is_sent_without_text(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    field_of(page).fill("  \n ")
    expect(page.get_by_role("button", name="Send after this turn")).to_be_disabled()
    field_of(page).press("Enter")
    assert prompts(gateway) == []


def test_a_slash_lists_the_commands_and_a_key_takes_one(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    field = field_of(page)
    field.press_sequentially("/")
    expect(page.get_by_role("option")).to_have_count(3 + 4)
    listed = page.get_by_role("listbox", name="Commands").get_by_role("option")
    expect(listed).to_have_count(3)
    expect(field).to_have_attribute("aria-activedescendant", "suggestions-s1-0")
    field.press("ArrowDown")
    expect(listed.nth(1)).to_have_attribute("aria-selected", "true")
    field.press("Tab")
    expect(field).to_have_value("/compact ")
    expect(listed).to_have_count(0)


def test_escape_closes_the_list_and_a_new_word_opens_it_again(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    field = field_of(page)
    field.press_sequentially("/re")
    expect(page.get_by_role("listbox", name="Commands")).to_be_visible()
    field.press("Escape")
    expect(page.get_by_role("listbox", name="Commands")).to_have_count(0)
    expect(field).to_have_value("/re")
    field.fill("@bas")
    expect(page.get_by_role("listbox", name="Files")).to_be_visible()


def test_a_file_that_is_mentioned_is_sent_as_a_link(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    field = field_of(page)
    field.press_sequentially("see @inv")
    expect(page.get_by_role("listbox", name="Files").get_by_role("option")).to_have_text(["shop/invoice.py"])
    field.press("Enter")
    expect(field).to_have_value("see @shop/invoice.py ")
    field.press_sequentially("and ask ann@example.org")
    field.press("Enter")
    until_called(page, gateway, "session/prompt")
    assert prompts(gateway) == [
        [
            {"type": "text", "text": "see "},
            {"type": "resource_link", "uri": f"file://{CWD}/shop/invoice.py", "name": "shop/invoice.py"},
            {"type": "text", "text": " and ask ann@example.org"},
        ]
    ]


@pytest.mark.firefox
def test_images_and_text_files_are_attached_and_can_be_removed(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    field_of(page).fill("look")
    image = {"name": "shot.png", "mimeType": "image/png", "buffer": base64.b64decode(picture())}
    notes = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"buy milk"}
    other = {"name": "other.txt", "mimeType": "text/plain", "buffer": b"nothing"}
    files: Any = [image, notes, other]
    page.get_by_label("Files", exact=True).set_input_files(files)
    attached = page.get_by_role("list", name="Attachments").get_by_role("listitem")
    expect(attached).to_have_count(3)
    page.get_by_role("button", name="Remove other.txt").click()
    field_of(page).press("Enter")
    expect(attached).to_have_count(0)
    until_called(page, gateway, "session/prompt")
    resource = {"uri": "attachment:///notes.txt", "mimeType": "text/plain", "text": "buy milk"}
    assert prompts(gateway) == [
        [
            {"type": "text", "text": "look"},
            {"type": "image", "mimeType": "image/png", "data": picture()},
            {"type": "resource", "resource": resource},
        ]
    ]


def test_an_image_is_refused_by_an_agent_that_takes_none_but_not_before_it_has_said_so(open_page: Opens) -> None:
    scene = shop()
    scene.extra["s1"] = {"promptCapabilities": {}}
    scene.extra["s5"] = {"promptCapabilities": None}
    page, _ = open_page(scene, "#/s/s1")
    files: Any = [{"name": "shot.png", "mimeType": "image/png", "buffer": base64.b64decode(picture())}]
    page.get_by_label("Files", exact=True).set_input_files(files)
    expect(page.locator(".toast")).to_contain_text("This agent takes no images.")
    page.get_by_role("link", name="Upgrade the linter").click()
    expect(page.get_by_role("heading", name="Upgrade the linter", level=1)).to_be_visible()
    page.get_by_label("Files", exact=True).set_input_files(files)
    expect(page.get_by_role("list", name="Attachments")).to_contain_text("shot.png")


def test_an_image_that_is_pasted_is_attached(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    field_of(page).evaluate(
        """(field, data) => {
          const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
          const transfer = new DataTransfer();
          transfer.items.add(new File([bytes], "clip.png", { type: "image/png" }));
          const options = { clipboardData: transfer, bubbles: true, cancelable: true };
          field.dispatchEvent(new ClipboardEvent("paste", options));
        }""",
        picture(),
    )
    expect(page.get_by_role("list", name="Attachments")).to_contain_text("clip.png")


def test_a_file_that_is_neither_image_nor_text_is_refused_in_words(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    binary: Any = {"name": "tool.bin", "mimeType": "application/octet-stream", "buffer": b"\x7fELF\0\0"}
    page.get_by_label("Files", exact=True).set_input_files([binary])
    expect(page.locator(".toast")).to_contain_text("tool.bin is neither an image nor text.")


def test_arrow_up_in_an_empty_field_recalls_earlier_prompts(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    field = field_of(page)
    field.press("ArrowUp")
    expect(field).to_have_value("Looks good. Push it, please.")
    field.press("ArrowUp")
    expect(field).to_have_value("The total of a basket can be negative. Please find out why, fix it and run the tests.")
    field.press("ArrowDown")
    field.press("ArrowDown")
    expect(field).to_have_value("")


def test_a_draft_survives_a_change_of_session_and_a_reload(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1")
    field_of(page).fill("not yet")
    page.get_by_role("link", name="Remove the old build").click()
    expect(page.get_by_role("heading", name="Remove the old build", level=1)).to_be_visible()
    expect(field_of(page)).to_have_value("")
    page.get_by_role("link", name="Totals of a basket").click()
    expect(field_of(page)).to_have_value("not yet")
    page.reload()
    expect(field_of(page)).to_have_value("not yet")


def test_stop_is_there_only_while_a_turn_runs(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    page.get_by_role("button", name="Stop").click()
    until_called(page, gateway, "session/cancel")
    gateway.end_turn("s1", stopReason="cancelled")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    expect(page.get_by_text("Stopped.", exact=True).first).to_be_visible()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_attached()


def test_a_prompt_that_the_gateway_refuses_is_kept_and_can_be_sent_again(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")

    def refuse(_: Any) -> None:
        raise ValueError("32 prompts wait already")

    gateway.answers["session/prompt"] = refuse
    field_of(page).fill("one more")
    field_of(page).press("Enter")
    expect(page.locator(".sending.is-failed")).to_contain_text("Not sent. 32 prompts wait already")
    del gateway.answers["session/prompt"]
    page.get_by_role("button", name="Send again", exact=True).click()
    expect(page.locator(".sending")).to_have_count(0)
    until(page, lambda: len(prompts(gateway)) == 2)


def test_prompts_that_wait_for_the_end_of_the_turn_are_counted(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    expect(field_of(page)).to_be_visible()
    gateway.change("s1", queued=2)
    expect(page.locator(".queue")).to_contain_text("2 prompts wait for the end of this turn.")


def test_modes_and_models_are_chosen_from_menus(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    page.get_by_role("combobox", name="Model").select_option("Small 5")
    until_called(page, gateway, "session/set_config_option")
    assert calls(gateway, "session/set_config_option") == [{"sessionId": "s1", "configId": "model", "value": "small"}]


def test_an_agent_without_options_has_menus_of_its_modes_and_models(open_page: Opens) -> None:
    scene = shop()
    modes = [{"id": "ask", "name": "Ask"}, {"id": "auto", "name": "Automatic"}]
    models = [{"modelId": "a", "name": "A"}, {"modelId": "b", "name": "B"}]
    scene.extra["s1"] = {
        "modes": {"currentModeId": "ask", "availableModes": modes},
        "models": {"currentModelId": "a", "availableModels": models},
    }
    page, gateway = open_page(scene, "#/s/s1")
    page.get_by_role("combobox", name="Mode", exact=True).select_option("Automatic")
    page.get_by_role("combobox", name="Model").select_option("B")
    until_called(page, gateway, "session/set_model")
    assert calls(gateway, "session/set_mode") == [{"sessionId": "s1", "modeId": "auto"}]
    assert calls(gateway, "session/set_model") == [{"sessionId": "s1", "modelId": "b"}]


def test_menus_show_what_was_chosen_last_by_the_user_or_the_agent(open_page: Opens) -> None:
    scene = shop()
    modes = [{"id": "ask", "name": "Ask"}, {"id": "auto", "name": "Automatic"}, {"id": "plan", "name": "Plan"}]
    scene.extra["s1"] = {"modes": {"currentModeId": "ask", "availableModes": modes}}
    page, gateway = open_page(scene, "#/s/s1")
    menu = page.get_by_role("combobox", name="Mode", exact=True)
    expect(menu).to_have_value("ask")
    gateway.add("s1", {"sessionUpdate": "current_mode_update", "currentModeId": "plan"})
    expect(menu).to_have_value("plan")
    menu.select_option("Automatic")
    until_called(page, gateway, "session/set_mode")
    expect(menu).to_have_value("auto")
    gateway.add("s1", {"sessionUpdate": "current_mode_update", "currentModeId": "ask"})
    expect(menu).to_have_value("ask")


def test_the_field_has_16_pixels_on_a_phone_so_that_browsers_do_not_zoom(open_page: Opens) -> None:
    page, _ = open_page(shop(), "#/s/s1", size=PHONE, touch=True)
    assert page.evaluate(f"matchMedia('{COARSE}').matches")
    assert field_of(page).evaluate("field => getComputedStyle(field).fontSize") == "16px"


def test_an_earlier_prompt_is_edited_and_sent_again(open_page: Opens) -> None:
    page, gateway = open_page(shop(), "#/s/s1")
    edit = page.get_by_role("button", name="Edit and send again").last
    edit.click()
    field = page.get_by_role("textbox", name="Prompt")
    expect(field).to_be_focused()
    expect(field).to_have_value("Looks good. Push it, please.")
    field.fill("Push it")
    edit.click()
    expect(field).to_have_value("Push it\n\nLooks good. Push it, please.")
    field.press("Enter")
    blocks = [{"type": "text", "text": "Push it\n\nLooks good. Push it, please."}]
    until(page, lambda: ("session/prompt", {"sessionId": "s1", "prompt": blocks}) in gateway.calls)


def test_those_who_look_on_edit_no_prompt(open_page: Opens) -> None:
    scene = shop()
    scene.sessions["s1"]["mayControl"] = False
    page, _ = open_page(scene, "#/s/s1")
    expect(page.get_by_role("button", name="Copy the prompt").last).to_be_visible()
    expect(page.get_by_role("button", name="Edit and send again")).to_have_count(0)
