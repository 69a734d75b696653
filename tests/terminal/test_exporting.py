"""Sessions written as Markdown, HTML and JSON, with and without secrets."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from weakref import ReferenceType, ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.protocol.redaction import MAX_SIZE
from acp_gateway.terminal.export_formats import FORMATS
from acp_gateway.terminal.exporting import MOST_COMPARED, History, Update, export, file_name, read_update, with_ends
from acp_gateway.terminal.line_diff import TOO_MANY
from acp_gateway.terminal.transcript import HARD_SIZE
from tests.kit.updates import any_updates, plan, said, tool

SECRET = "ghp_" + "a1B2" * 9


def history(*updates: Any, title: str = "Mend it", truncated: bool = False) -> History:
    told = [Update(1_800_000_000_000 + 1000 * index, update) for index, update in enumerate(updates)]
    return History("s1", "opencode", title, "/srv/it", truncated, told)


def diff(old: str, new: str, path: str = "/srv/a.py") -> dict[str, str]:
    return {"type": "diff", "path": path, "oldText": old, "newText": new}


def text_of_tool(text: str) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": text}}


class Reader(HTMLParser):
    """The tags and the text of a page; no element is left open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_markdown_has_who_said_what_and_when() -> None:
    written = export(history(said("Do it", "user"), said("On "), said("it."), said("hm", "thought")), "markdown")
    assert written == (
        "# Mend it\n\n- Session: `s1`\n- Agent: `opencode`\n- Folder: `/srv/it`\n\n"
        "## User, 2027-01-15T08:00:00Z\n\nDo it\n\n"
        "## Agent, 2027-01-15T08:00:01Z\n\nOn it.\n\n"
        "> **Thought, 2027-01-15T08:00:03Z**\n>\n> hm\n"
    )


def test_markdown_has_tool_calls_with_input_places_diffs_and_output() -> None:
    content = [diff("a\nb\n", "a\nc\n"), text_of_tool("```\ndone")]
    call = tool("t", status="completed", title="Run *make*", rawInput={"command": "make all"}, content=content)
    call["locations"] = [{"path": "/srv/a.py", "line": 3}]
    written = export(history(call, plan(("first", "completed"), ("then", "pending"))), "markdown")
    assert "**Tool: Run \\*make\\* (completed)**" in written
    assert "```\nmake all\n```" in written
    assert "`/srv/a.py:3`" in written
    assert "```diff\n a\n-b\n+c\n```" in written
    # The fence is longer than what the output has.
    assert "````\n```\ndone\n````" in written
    assert "- [x] first\n- [ ] then" in written


def test_a_message_that_the_transcript_cuts_is_written_as_one() -> None:
    long = "x" * (2 * HARD_SIZE + 5)
    written = export(history(said(long), said("y", "user")), "markdown")
    assert f"\n\n{long}\n\n## User" in written
    assert written.count("## Agent") == 1


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_the_ends_of_turns_that_were_not_done_are_written_where_they_were(form: str) -> None:
    told = [said("one", "user"), said("two", "user"), said("three")]
    ends: list[dict[str, Any]] = [
        {"seq": 1, "nth": 1, "time": 1_800_000_000_500, "error": {"code": 429, "message": "try again in 32 s"}},
        {"seq": 2, "nth": 1, "time": None, "stopReason": "cancelled"},
        {"seq": 3, "nth": 1, "time": 10**20, "stopReason": "end_turn"},
    ]
    updates = with_ends(history(*told).updates, 1, ends)
    text = export(replace(history(), updates=updates), form)
    failed, stopped = "the turn has failed: try again in 32 s, 2027-01-15T08:00:00Z", "the turn has ended: cancelled"
    found = [text.index(part) for part in ("one", failed, "two", stopped, "three")]
    assert found == sorted(found)
    assert text.count("the turn has") == 2


def test_json_has_each_end_of_a_turn_behind_its_update() -> None:
    told = [said("one", "user"), said("two")]
    ends = [{"seq": 4, "nth": 1, "time": 5, "stopReason": "end_turn"}, {"seq": 5, "nth": 1, "time": 6, "error": {}}]
    updates = [*with_ends(history(*told).updates, 5, [{"seq": 4, "nth": 1}, *ends])]
    kinds = [one.update["sessionUpdate"] for one in updates]
    assert kinds == ["turn_end", "turn_end", "user_message_chunk", "turn_end", "agent_message_chunk"]
    found = json.loads(export(replace(history(), updates=updates), "json"))["updates"]
    assert found[1] == {
        "createdAt": "1970-01-01T00:00:00Z",
        "update": {"sessionUpdate": "turn_end", "stopReason": "end_turn"},
    }


def test_a_history_without_its_beginning_says_so() -> None:
    for form in ("markdown", "html"):
        assert "not kept any more" in export(history(said("a"), truncated=True), form)
        assert "not kept any more" not in export(history(said("a")), form)
    assert json.loads(export(history(truncated=True), "json"))["truncated"] is True


def test_json_has_each_update_as_it_came() -> None:
    message = {"params": {"sessionId": "inner", "update": said("b")}}
    told = [Update(None, said("a")), read_update(message, 1_800_000_000_000, "s1")]
    written = json.loads(export(History("n/s1", "n/x", "", "", truncated=False, updates=told), "json"))
    assert written == {
        "session": {"id": "n/s1", "agent": "n/x", "title": "", "cwd": ""},
        "truncated": False,
        "updates": [
            {"createdAt": None, "update": said("a")},
            {"createdAt": "2027-01-15T08:00:00Z", "sub": "inner", "update": said("b")},
        ],
    }


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_what_reads_otherwise_than_it_is_written_is_escaped(form: str) -> None:
    hostile = "\x1b[2J\u202e\u200b"
    written = export(history(said(hostile), tool("t", title=hostile, content=[text_of_tool(hostile)])), form)
    assert written.isascii()
    assert "\x1b" not in written


@given(st.lists(any_updates, max_size=8), st.text())
def test_html_has_no_element_and_no_attribute_of_a_text(updates: list[Any], title: str) -> None:
    attack = "<script>x</script><img src=x onerror=y>\"'&amp;"
    updates = [
        *updates,
        said(attack),
        tool("z", title=attack, content=[diff(attack, "", attack), text_of_tool(attack)]),
    ]
    page = export(history(*updates, title=title + attack), "html")
    read = Reader(page)
    allowed = {*("html", "head", "meta", "title", "style", "body", "h1", "h2", "dl", "dt", "dd", "p", "div", "pre")}
    assert set(read.tags) <= allowed | {"details", "summary", "ins", "del", "ol", "li"}
    assert read.open == []
    assert read.text.count(attack) >= 3
    assert "default-src 'none'" in page


@pytest.mark.parametrize("form", FORMATS)
def test_secrets_are_left_out_on_request_even_if_two_updates_have_a_part_each(form: str) -> None:
    updates = [
        said(f"it is {SECRET[:9]}"),
        said(f"{SECRET[9:]}, keep it"),
        tool("t", rawInput={"env": {"API_KEY": "hunter2"}}, content=[text_of_tool(f"token: {SECRET}")]),
    ]
    written = export(history(*updates, title=f"use {SECRET}"), form, redacted=True)
    assert SECRET not in written
    assert SECRET[9:] not in written
    assert "hunter2" not in written
    assert "keep it" in written
    plain = export(history(*updates, title=f"use {SECRET}"), form)
    assert SECRET in plain
    assert "hunter2" in plain


def test_redaction_joins_only_chunks_that_differ_in_nothing_but_text() -> None:
    updates = [said("a"), said("b"), said("c", "user"), said("d", messageId="1"), said("e", messageId="2")]
    written = json.loads(export(history(*updates), "json", redacted=True))
    assert [one["update"]["content"]["text"] for one in written["updates"]] == ["ab", "c", "d", "e"]


def test_an_update_that_is_too_large_to_redact_is_left_out() -> None:
    written = export(history(tool("t", content=[text_of_tool("x" * MAX_SIZE)])), "json", redacted=True)
    assert len(written) < 1000
    assert "too large to redact" in written


def test_a_long_text_with_many_words_for_secrets_is_redacted_whole() -> None:
    text = "the token of the password is a secret key\n" * 2000
    written = json.loads(export(history(said(text + SECRET + "\nend")), "json", redacted=True))
    told = written["updates"][0]["update"]["content"]["text"]
    assert told.endswith("\nend")
    assert SECRET not in told


def test_beyond_a_number_of_diffs_both_texts_are_written() -> None:
    content = [diff("same\nold\n", "same\nnew\n") for _ in range(MOST_COMPARED + 1)]
    written = export(history(tool("t", content=[*content, diff("", "made\n")])), "markdown")
    assert written.count(" same\n-old\n+new\n") == MOST_COMPARED
    assert written.count(f"!{TOO_MANY}\n-same\n-old\n+same\n+new\n") == written.count("!") == 1
    assert "```diff\n+made\n```" in written


@pytest.mark.parametrize(
    ("title", "session_id", "name"),
    [
        ("Fix the tests!", "s", "Fix-the-tests.md"),
        ("../../etc/passwd", "s", "etc-passwd.md"),
        ("", "a/b-1", "a-b-1.md"),
        ("日本", "…", "session.md"),
        ("x" * 100, "s", "x" * 60 + ".md"),
    ],
)
def test_the_name_of_a_file_has_letters_and_digits(title: str, session_id: str, name: str) -> None:
    assert file_name(title, session_id, "markdown") == name
    assert re.fullmatch(r"[A-Za-z0-9-]+\.md", name)


@pytest.mark.parametrize("time", [-1, 253_402_300_800_000, 10**30])
@pytest.mark.parametrize("form", FORMATS)
def test_a_time_that_no_date_has_is_left_out(form: str, time: int) -> None:
    update = read_update({"params": {"sessionId": "s", "update": said("hello")}}, time, "s")
    assert update.time is None
    assert "hello" in export(History("s1", "opencode", "", "", False, [update]), form)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("```python\nx = 1", "\n```"),
        ("~~~~\n~~~\n```", "\n~~~~"),
        ("```\nx\n```", ""),
        ("`````\n```\nx\n``````", ""),
        ("```x``` in a line", ""),
        ("```\n    ```\n``` x", "\n```"),
    ],
)
def test_code_of_a_message_that_was_cut_off_ends_with_it_in_markdown(text: str, end: str) -> None:
    written = export(history(said(text), said("next", "user")), "markdown")
    assert f"\n\n{text}{end}\n\n## User" in written
    assert export(history(said(text)), "markdown").endswith(f"\n\n{text}{end}\n")


def test_code_of_a_long_message_goes_on_in_its_other_parts() -> None:
    text = "```\n" + "a line\n" * (2 * HARD_SIZE // 7)
    assert export(history(said(text + "```")), "markdown").endswith("a line\n```\n")
    assert export(history(said(text + "x")), "markdown").endswith("a line\nx\n```\n")


class WeakDict(dict[str, Any]):
    """An object that can be referred to weakly."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("redacted", [False, True])
@pytest.mark.parametrize("form", sorted(FORMATS))
def test_updates_are_read_once_and_dropped_one_by_one(form: str, redacted: bool) -> None:
    read: list[ReferenceType[WeakDict]] = []
    kept: list[int] = []

    def updates() -> Iterator[Update]:
        for number in range(50):
            kept.append(sum(it() is not None for it in read))
            update = WeakDict(tool(f"t{number}", title=f"run {number}", rawInput={"a": [number]}))
            read.append(ref(update))
            yield Update(None, update)

    text = export(replace(history(), updates=updates()), form, redacted=redacted)
    assert all(f"run {number}" in text for number in range(50))
    assert max(kept) <= 4
