"""Text that would be markup, script, links or escape sequences, in each field that an agent or another user fills."""

import base64
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser.conftest import WIDE, settled
from tests.web.browser.end_to_end.conftest import PageGateway, SignIn

MARK = "hostile"
"""A word in each text, by which a test sees that it is shown."""

TEXTS = {
    "script": "<script>window.taken = 1</script>",
    "handler": "<img src=x onerror='window.taken = 1'><body onload=alert(1)>",
    "break out": "'\"--></style></title></textarea></script><svg/onload=alert(1)>",
    "vector": "<svg><a xlink:href='javascript:alert(1)'><text>x</text></a><animate onbegin=alert(1)></svg>",
    "formula": "<math><mtext></p><style><!--</style><img title='--><img src onerror=alert(1)>'></mtext></math>",
    "frame": "<iframe srcdoc='<script>alert(1)</script>'></iframe><object data='javascript:alert(1)'></object>",
    "form": "<form action=//evil.example><input name=innerHTML><button formaction=javascript:x>x</button></form>",
    "base": "<base href=//evil.example/><meta http-equiv=refresh content='0;url=//evil.example'>",
    "style": "<style>@import '//evil.example/x.css'; body { display: none }</style><link rel=stylesheet href=//e>",
    "links": "[x](javascript:alert(1)) [y](data:text/html,<script>alert(1)</script>) [z](vbscript:x) <javascript:x>",
    "written otherwise": "[x](JaVa&#x73;cript:alert(1)) [y](java\tscript:alert(1)) [z](\x01javascript:alert(1))",
    "picture": "![x](https://evil.example/seen.png) ![y](javascript:alert(1)) ![z](//evil.example/p)",
    "reference": "[x][r] ![x][r]\n\n[r]: javascript:alert(1) 'a\" onclick=\"alert(1)'",
    "title": "[x](https://example.org/ \"' onmouseover='window.taken = 1\")",
    "fence": "```<img src=x onerror=alert(1)>\n</code></pre><script>alert(1)</script>\n```",
    "coloured": "\n\n```html\n<script>window.taken = 1</script><img src=x onerror='alert(1)'>\n```\n",
    "table": "|<script>alert(1)</script>|[x](javascript:1)|\n|--|--|\n|<img src=x onerror=alert(1)>|y|",
    "template": "{{constructor.constructor('alert(1)')()}} ${alert(1)} <%= 1 %> __proto__",
    "escapes": "\x1b[31mred\x1b]0;title\x07\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07\x1b[2J\x9b31m\x90q",
    "directions": "safe\u202etxt.exe\u202c \u2066x\u2069 \u200f\u061c\u200b\ufeff\u2028\U000e0041\u00ad",
}

FINDINGS = r"""() => {
  const found = [];
  if (window.taken !== undefined) found.push("a script of the agent ran");
  const banned = "script, style, link, iframe, object, embed, base, meta, math, form[action], animate, video";
  for (const one of document.body.querySelectorAll(banned)) found.push(one.outerHTML.slice(0, 100));
  for (const one of document.querySelectorAll("body *")) {
    for (const { name, value } of one.attributes) {
      const isCode = name.startsWith("on") || name === "srcdoc" || (name === "style" && /url|import/i.test(value));
      const isText = name === "title" || name === "aria-label";
      if (isCode || (!isText && /^\s*(javascript|vbscript|data:text)/i.test(value))) found.push(`${name}=${value}`);
    }
  }
  for (const { href, rel } of document.querySelectorAll("a")) {
    if (href.startsWith(location.origin)) continue;
    if (!/^(https?|mailto):/.test(href) || !/noopener/.test(rel)) found.push(`a link to ${href}`);
  }
  for (const { src } of document.images) {
    if (/^(data:image\/(png|jpeg|gif|webp)|blob:)/.test(src) || src.startsWith(location.origin)) continue;
    found.push(`an image at ${src}`);
  }
  return found;
}"""

HIDDEN = r"""() => {
  const hidden = new RegExp("[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u061c\\u200b-\\u200f\\u2028-\\u202e"
    + "\\u2066-\\u2069\\ufeff]|\\udb40[\\udc00-\\udc7f]");
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = hidden.test(document.title) ? ["the title"] : [];
  while (walker.nextNode()) {
    const { parentElement, data } = walker.currentNode;
    // Prose may need them, as that of right-to-left languages does; it is isolated.
    if (hidden.test(data) && !parentElement.closest(".markdown")) found.push(`${parentElement.className}: ${data}`);
  }
  for (const one of document.querySelectorAll("[aria-label], [title], option")) {
    if (hidden.test(`${one.ariaLabel}${one.title}${one.label}`)) found.push(one.outerHTML.slice(0, 80));
  }
  return found;
}"""

# The page is laid out again at a new width. wait_for_function would evaluate text, which the page forbids.
FITS = """() => new Promise((resolve) => {
  const end = performance.now() + 30000;
  const look = () => {
    const scroller = document.querySelector(".scroller");
    const fits = document.documentElement.scrollWidth === 320 && scroller.scrollWidth <= scroller.clientWidth;
    if (fits || performance.now() > end) resolve(fits);
    else requestAnimationFrame(look);
  };
  look();
})"""


def updates(text: str) -> list[dict[str, Any]]:
    """Return updates of every kind with the text in every field."""
    vector = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>").decode()
    chunk = {"type": "text", "text": text}
    blocks: list[dict[str, Any]] = [
        chunk,
        {"type": "image", "mimeType": "image/svg+xml", "data": vector, "uri": text},
        {"type": "image", "mimeType": text, "data": text, "uri": "https://evil.example/x.png"},
        {"type": "audio", "mimeType": text, "data": text},
        {"type": "resource_link", "uri": "javascript:alert(1)", "name": text, "title": text, "description": text},
        {"type": "resource_link", "uri": text, "name": text, "mimeType": text, "size": text},
        {"type": "resource", "resource": {"uri": text, "mimeType": "text/html", "text": text}},
        {"type": text, text: text},
    ]
    call = {
        "sessionUpdate": "tool_call",
        "toolCallId": text,
        "title": text,
        "kind": "execute",
        "status": text,
        "locations": [{"path": text, "line": 1}, {"path": f"/{text}", "line": text}],
        "rawInput": {"command": text, "description": text, "cwd": text, text: text},
        "rawOutput": {text: text, "output": text},
        "content": [
            *({"type": "content", "content": block} for block in blocks),
            {"type": "diff", "path": text, "oldText": text, "newText": f"{text}\nmore {text}"},
            {"type": "terminal", "terminalId": text},
            {"type": text, text: text},
        ],
        "_meta": {
            "terminal_info": {"terminal_id": text},
            "terminal_output": {"terminal_id": text, "data": text},
            "terminal_exit": {"terminal_id": text, "exit_code": 1, "signal": text},
        },
    }
    other = {**call, "toolCallId": f"other {text}", "kind": text, "content": [], "rawInput": {text: text, "a": [text]}}
    return [
        *({"sessionUpdate": "user_message_chunk", "content": block} for block in blocks),
        *({"sessionUpdate": "agent_thought_chunk", "content": block} for block in blocks),
        *({"sessionUpdate": "agent_message_chunk", "content": block} for block in blocks),
        call,
        other,
        {"sessionUpdate": "plan", "entries": [{"content": text, "priority": text, "status": text}] * 2},
        {
            "sessionUpdate": "available_commands_update",
            "availableCommands": [{"name": text, "description": text, "input": {"hint": text}}],
        },
        {"sessionUpdate": "current_mode_update", "currentModeId": text},
        {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 1, "currency": text}},
        {"sessionUpdate": "session_info_update", "title": text},
        {"sessionUpdate": text, text: text},
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"\n\n{MARK}"}},
    ]


def question(text: str) -> dict[str, Any]:
    call = {
        "toolCallId": f"asked {text}",
        "title": text,
        "kind": text,
        "rawInput": {"command": text, "description": text, "cwd": text},
        "content": [{"type": "diff", "path": text, "oldText": text, "newText": f"{text}!"}],
        "locations": [{"path": text}],
    }
    options = [{"optionId": text, "name": text, "kind": kind} for kind in ("allow_once", "reject_once", text)]
    return {"message": text, "toolCall": call, "options": options}


def unfold(page: Page) -> None:
    expect(page.locator(".row").last).to_contain_text(MARK)
    settled(page)
    for fold in page.locator(".row .fold").all():
        fold.click()
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_shown_as_text_wherever_an_agent_can_put_it(gateway: PageGateway, sign_in: SignIn, name: str) -> None:
    text = f"{MARK} {TEXTS[name]}"
    modes = {"currentModeId": text, "availableModes": [{"id": text, "name": text, "description": text}]}
    models = {"currentModelId": text, "availableModels": [{"modelId": text, "name": text, "description": text}]}
    gateway.play(
        {name: [*({"update": one} for one in updates(text)), {"ask": question(text)}]}, modes=modes, models=models
    )
    # The agent gives the title.
    session = gateway.session("")
    with gateway.client() as client:
        client.result("session/get", sessionId=session)
        client.result("session/prompt", sessionId=session, prompt=[{"type": "text", "text": name}])
        client.until_told("session/request", sessionId=session)
    # High enough that all of the transcript is in the document.
    page = sign_in(f"/s/{session}", size=(WIDE[0], 6000))
    expect(page.locator(".permission")).to_contain_text(MARK)
    expect(page.get_by_role("heading", level=1, name=MARK)).to_be_visible()
    expect(page).to_have_title(re.compile(MARK))
    unfold(page)
    expect(page.locator(".tool-body").first).to_contain_text(MARK)
    field = page.get_by_role("textbox", name="Prompt")
    field.fill("/")
    expect(page.get_by_role("listbox", name="Commands")).to_contain_text(MARK)
    assert page.evaluate(FINDINGS) == []
    if name in ("escapes", "directions"):
        assert page.evaluate(HIDDEN) == []
    if name == "coloured":
        expect(page.locator(".markdown .code-keyword", has_text="img").first).to_be_visible()
    page.set_viewport_size({"width": 320, "height": 6000})
    assert page.evaluate(FITS)
    page.locator(".option").first.click()
    expect(page.locator(".permission")).to_have_count(0)
    assert page.evaluate(FINDINGS) == []
    page.get_by_role("link", name="Changes").click()
    page.locator(".line-number").first.click()
    page.locator(".remark textarea").fill(text)
    page.get_by_role("button", name="Keep").click()
    expect(page.locator(".remark")).to_contain_text(MARK)
    assert page.evaluate(FINDINGS) == []
    if name in ("escapes", "directions"):
        # What the reader has written is shown as it was written.
        page.get_by_role("button", name="Discard").click()
        expect(page.locator(".remark")).to_have_count(0)
        assert page.evaluate(HIDDEN.replace("document.body", "document.querySelector('.changes')")) == []


def test_the_name_of_a_folder_and_of_another_user_are_shown_as_text(gateway: PageGateway, sign_in: SignIn) -> None:
    folder = gateway.folder / "<img src=x onerror=alert(1)>\u202etxt.exe"
    folder.mkdir()
    session = gateway.session("Folder", cwd=str(folder))
    stranger = "<svg onload=alert(1)>"
    made = gateway.running.save_token("token", "create", "--label", "o", "--identity", stranger, "--session", session)
    page = sign_in(f"/s/{session}")
    expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
    other = sign_in(f"/s/{session}", code=gateway.code(token_file=made))
    expect(other.get_by_role("heading", level=1, name="Folder")).to_be_visible()
    expect(page.locator(".presence")).to_contain_text(stranger)
    for one in (page, other):
        assert one.evaluate(FINDINGS) == []
        assert one.evaluate(HIDDEN) == []
