"""A session as `watch` writes it: the history, the stream, and one line for what happens."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.terminal.content import Option
from acp_gateway.terminal.dialogue import (
    Asked,
    Closed,
    Decided,
    Event,
    Failed,
    Kept,
    Opened,
    Question,
    Queued,
    TurnEnded,
    TurnStarted,
    Updated,
    Withdrawn,
)
from acp_gateway.terminal.forms import read_form
from acp_gateway.terminal.questions import PAUSE, TYPING_PAUSE
from acp_gateway.terminal.rendering import render
from acp_gateway.terminal.transcript import Transcript
from acp_gateway.terminal.watching import SHOWN_TOOLS, STEERING, Watcher, json_line, link_json_line
from tests.fuzz.effort import effort
from tests.kit.updates import HOSTILE, any_updates, plain_text, plan, said, texts, tool

OPENED = Opened("s", (), "")
ALLOW = Option("a", "Allow", "allow_once")


def question(number: int, **tool_members: object) -> Question:
    return Question(number, {"toolCallId": f"t{number}", "title": f"Run {number}", **tool_members}, (ALLOW,))


def watch(*happened: object, **options: Any) -> str:
    """Return what is written of events, and of updates; without `OPENED` among them the session is open before."""
    watcher = Watcher(**options)
    events = [one if isinstance(one, Event) else Updated(one, "") for one in happened]  # type: ignore[arg-type]
    watcher.receive(events if OPENED in events else [OPENED, *events], 0)
    watcher.end()
    return watcher.take()


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


def test_text_is_written_as_it_streams(watcher: Watcher) -> None:
    written = []
    events: list[Event] = [OPENED, *(Updated(said(text), "") for text in ("Hel", "lo\n", "there"))]
    for event in events:
        watcher.receive([event], 0)
        written.append(watcher.take())
    assert written == ["", "Hel", "lo", "\nthere"]


def test_messages_are_apart_and_marked_by_their_kind() -> None:
    assert watch(said("hi", "user"), said("let\nme", "thought"), said("hello"), said("x", messageId="2")) == (
        "> hi\n\n~ let\n~ me\n\nhello\n\nx\n"
    )


def test_a_message_that_was_interrupted_goes_on_in_a_line_of_its_own() -> None:
    assert watch(said("a"), Updated(said("x"), "child"), said("b")) == "a\n\n| x\n\nb\n"


def test_the_history_has_each_tool_call_once_in_its_last_state() -> None:
    history = (said("go", "user"), tool(title="Read"), said("I read."), tool(status="completed"))
    assert watch(*history, OPENED, said(" More.")) == "> go\n● Read\n\nI read. More.\n"


@pytest.mark.parametrize("end", ["42", "[y/n]", "`x`", "**yes**", "-"])
def test_the_history_is_written_to_its_last_character(end: str, watcher: Watcher) -> None:
    watcher.receive([Updated(said(f"so:\n{end}"), ""), OPENED], 0)
    assert watcher.take() == f"so:\n{end}"


def test_the_history_begins_where_it_is_asked_to() -> None:
    history = (said("a", "user"), said("b"), tool(title="Read"), OPENED, tool(status="completed"))
    assert watch(*history, last=1) == "-- not shown: 2 older\n○ Read\n● Read\n"
    assert watch(*history, last=0) == "● Read\n"
    assert watch(*history, last=9).startswith("> a\n")


def test_what_was_dropped_of_the_history_is_counted() -> None:
    assert watch(said("a", "user"), said("b"), OPENED, size=1) == "-- not shown: 1 older\n\nb\n"


def test_a_tool_call_has_a_line_when_it_begins_and_when_it_ends() -> None:
    states = ("in_progress", "in_progress", "completed", "completed")
    assert watch(tool(title="Read"), *(tool(status=state) for state in states)) == "○ Read\n● Read\n"


def test_a_tool_call_that_learns_its_title_has_another_line() -> None:
    assert watch(tool(title="Read File"), tool(title="Read shop.py")) == "○ Read File\n○ Read shop.py\n"


def test_the_diff_of_a_tool_call_is_written_once() -> None:
    edit = tool(title="Edit", content=[{"type": "diff", "path": "a", "oldText": "", "newText": "x"}])
    assert watch(edit, {**edit, "status": "completed"}) == "○ Edit\n    a +1 -0\n    + x\n● Edit\n"


def test_the_output_of_a_failed_tool_call_is_written() -> None:
    text = {"type": "content", "content": {"type": "text", "text": "a\nb"}}
    failed = tool(title="make", status="failed", content=[text])
    assert watch(failed, lines=1) == "✗ make (failed)\n    … 1 more\n    b\n"


def test_more_tool_calls_than_are_remembered_are_written_again_when_they_change() -> None:
    calls = [tool(str(number), title="x") for number in range(SHOWN_TOOLS + 1)]
    assert watch(*calls, tool("0", status="pending")).count("x") == SHOWN_TOOLS + 2


def test_a_plan_is_written_whole_and_then_its_changes() -> None:
    first = plan(("read", "in_progress"), ("write", "pending"))
    second = plan(("read", "completed"), ("write", "pending"))
    third = plan(("read", "completed"), ("test", "pending"))
    assert watch(first, first, second, third) == (
        "Plan 0/2\n  ◐ read\n  ○ write\nPlan 1/2\n  ● read\nPlan 1/2\n  ● read\n  ○ test\n"
    )


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (TurnEnded("end_turn", ""), "the turn has ended"),
        (TurnEnded("max_tokens", ""), "the turn has ended: max_tokens"),
        (TurnEnded("", "agent_ended"), "the turn was cut off: agent ended"),
        (TurnEnded("", ""), "the turn was cut off: the agent answered with an error"),
        (Decided("ann", "a"), "ann has decided: a"),
        (Decided("", "timeout"), "the gateway has decided: timeout"),
        (Failed("session/prompt", "no\x1b"), "refused: no\\x1b"),
        (Closed("the session was closed"), "the session was closed"),
        (Queued(1, (("ann", "Fix  the\ntests"),)), "1 prompt waits: ann: Fix the tests"),
        (Queued(2, (("ann", "one"), ("bob", "x" * 61))), f"2 prompts wait: 1. ann: one; 2. bob: {'x' * 59}…"),
        (
            Queued(
                *(3, (("ann", "a"), ("ann", "b"), ("ann", "c"))),
                (Kept("1", "a", "timed", 1_800_000_000_000), Kept("2", "b", "held"), Kept("3", "c", "lost")),
            ),
            (
                "3 prompts wait: 1. ann: a (to be sent 2027-01-15 08:00 UTC); 2. ann: b (until it is sent or removed); "
                "3. ann: c (may have reached the agent, is not sent again)"
            ),
        ),
        (Queued(20, (("ann", "a"),) * 10), "20 prompts wait: 1. ann: a; 2. ann: a; 3. ann: a; 17 more"),
        ({"sessionUpdate": "current_mode_update", "currentModeId": "plan"}, "mode: plan"),
    ],
)
def test_each_event_is_a_line(event: object, line: str) -> None:
    assert watch(said("x"), event) == f"x\n-- {line}\n"


def test_an_empty_queue_is_not_written() -> None:
    assert watch(said("x"), Queued(0, ())) == "x\n"


def test_the_end_of_a_turn_ends_its_message() -> None:
    assert watch(said("a"), TurnEnded("end_turn", ""), TurnStarted("ann"), said("b")).endswith("ended\n\nb\n")


def test_a_question_is_shown_with_its_diff_and_answered_by_a_key() -> None:
    asked = question(1, content=[{"type": "diff", "path": "a", "oldText": "", "newText": "x"}])
    watcher = Watcher()
    watcher.receive([OPENED, Asked(asked)], 0)
    shown = "○ Run 1\n    a +1 -0\n    + x\n? May the agent do this: Run 1\n  [y] Allow\n"
    assert watcher.take() == shown
    assert watcher.key("y", PAUSE) == (asked, ALLOW)
    watcher.answered(1, PAUSE)
    watcher.receive([Decided("ann", "a")], PAUSE)
    assert watcher.take() == "-- ann has decided: Allow\n"
    assert watcher.key("y", 9) is None


REJECT = Option("r", "Reject", "reject_once")


def asked_in(rows: int, size: int, **options: Any) -> tuple[Watcher, Question]:
    """A watcher in a terminal of 80 columns that asks about a change of so many lines."""
    diff = {"type": "diff", "path": "a", "oldText": "", "newText": "".join(f"line {n}\n" for n in range(size))}
    asked = Question(1, {"toolCallId": "t1", "title": "Edit a", "content": [diff]}, (ALLOW, REJECT))
    watcher = Watcher(columns=lambda: 80, rows=lambda: rows, **options)
    watcher.receive([OPENED, Asked(asked)], 0)
    return watcher, asked


def test_a_question_that_fits_onto_the_screen_is_answered_at_once() -> None:
    watcher, asked = asked_in(24, 18)
    assert watcher.take().endswith("    + line 17\n? May the agent do this: Edit a\n  [y] Allow   [n] Reject\n")
    assert watcher.key("1", PAUSE) == (asked, ALLOW)


@pytest.mark.parametrize(("rows", "lines", "shown"), [(24, 30, 40), (100, 60, 40), (100, 8, 7)])
def test_a_question_can_be_allowed_when_its_last_row_was_shown(rows: int, lines: int, shown: int) -> None:
    watcher, asked = asked_in(rows, lines, lines=shown)
    total = lines + 2
    assert f"\n  {total} rows: Space shows more; it can be allowed after the last\n  [y] Allow" in watcher.take()
    now, written = PAUSE, ""
    for key in (" ", "1", "y", " ", "1", "y"):
        if f"rows 1-{total} of {total}" in written:
            break
        assert watcher.key(key, now) is None
        part = watcher.take()
        assert part.count("\n") <= rows - 1
        written += part
        now += PAUSE
    assert all(f"    + line {number}\n" in written for number in range(lines))
    assert written.endswith(f"  rows 1-{total} of {total}\n  [y] Allow   [n] Reject\n")
    assert watcher.key("1", now - PAUSE) is None
    assert watcher.key("1", now) == (asked, ALLOW)


def test_a_question_is_rejected_at_any_time_and_space_decides_nothing() -> None:
    watcher, asked = asked_in(24, 100)
    assert watcher.key("n", PAUSE) == (asked, REJECT)
    watcher, asked = asked_in(24, 1)
    assert watcher.key(" ", PAUSE) is None


def test_a_long_line_of_a_question_takes_as_many_rows_as_it_needs() -> None:
    text = {"type": "content", "content": {"type": "text", "text": "x" * 79 * 30}}
    watcher = Watcher(columns=lambda: 80, rows=lambda: 24)
    watcher.receive([OPENED, Asked(question(1, content=[text]))], 0)
    assert "  32 rows: Space shows more" in watcher.take()


def test_the_next_question_is_not_as_long_as_the_one_before() -> None:
    watcher, _ = asked_in(24, 100)
    watcher.receive([Asked(question(2))], 0)
    watcher.answered(1, 1)
    assert watcher.key("y", 1 + PAUSE) == (question(2), ALLOW)


def test_a_change_of_a_few_lines_in_a_large_file_is_short() -> None:
    old = "".join(f"line {n}\n" for n in range(1000))
    diff = {"type": "diff", "path": "a", "oldText": old, "newText": old.replace("line 7\n", "new\n")}
    watcher = Watcher(columns=lambda: 80, rows=lambda: 24)
    watcher.receive([OPENED, Asked(question(1, content=[diff]))], 0)
    assert "Space" not in watcher.take()
    assert watcher.key("y", PAUSE) is not None


def test_a_question_that_names_only_its_tool_call_has_the_title_and_the_command_of_that() -> None:
    run = tool("t1", title="Run make", rawInput={"command": "make all"})
    asked = Asked(Question(1, {"toolCallId": "t1"}, (ALLOW,)))
    assert watch(run, asked) == ("○ Run make\n? May the agent do this: Run make\n    $ make all\n  [y] Allow\n")


def test_questions_are_shown_one_after_the_other(watcher: Watcher) -> None:
    watcher.receive([OPENED, Asked(question(1)), Asked(question(2))], 0)
    assert watcher.take().count("?") == 1
    watcher.receive([Withdrawn(1)], 1)
    assert watcher.take() == "? May the agent do this: Run 2\n  [y] Allow\n"
    assert watcher.key("y", 1 + PAUSE) == (question(2), ALLOW)


def test_a_question_that_waited_is_shown_after_the_history() -> None:
    assert watch(Asked(question(1)), said("a"), OPENED).endswith("a\n? May the agent do this: Run 1\n  [y] Allow\n")


def test_the_state_of_the_connection_is_a_line(watcher: Watcher) -> None:
    watcher.receive([OPENED, Updated(said("a"), "")], 0)
    watcher.link_changed("the connection was lost", 0, up=False)
    watcher.receive([Updated(said("b"), "")], 0)
    watcher.link_changed("connected again", 0, up=True)
    assert watcher.take() == "a\n-- the connection was lost\n\nb\n-- connected again\n"


def silences(watcher: Watcher, until: float) -> list[str]:
    """Return what is written of the agent's silence up to a time, each when it is due."""
    watcher.take()
    written = []
    while watcher.silence_due <= until:
        watcher.write_silence(watcher.silence_due)
        written.append(watcher.take())
    return written


def test_the_silence_of_a_working_agent_is_told_after_a_minute_and_at_each_doubling(watcher: Watcher) -> None:
    watcher.receive([OPENED, TurnStarted("ann")], 10)
    watcher.write_silence(69)
    assert watcher.take() == ""
    lengths = ["1 min", "2 min", "4 min", "8 min", "16 min", "32 min", "1 h", "2 h"]
    assert silences(watcher, 10_000) == [f"-- no word from the agent for {length}\n" for length in lengths]
    watcher.receive([Updated(said("here"), "")], 10_000)
    assert watcher.silence_due == 10_060


WORKS = Updated({"sessionUpdate": "session_info_update", "_meta": {"acp-gateway": {"state": "running"}}}, "")
WAITS = Updated({"sessionUpdate": "session_info_update", "_meta": {"acp-gateway": {"state": "requires_action"}}}, "")


@pytest.mark.parametrize(
    ("events", "is_told"),
    [
        ([OPENED], False),
        ([OPENED, WORKS], True),
        ([TurnStarted("ann", running=True), OPENED], True),
        ([TurnStarted("ann", running=True)], False),
        ([OPENED, TurnStarted("ann"), TurnEnded("end_turn", "")], False),
        ([OPENED, TurnStarted("ann"), Asked(question(1))], False),
        ([OPENED, TurnStarted("ann"), Asked(question(1)), Withdrawn(1)], True),
        ([OPENED, TurnStarted("ann"), WAITS], False),
    ],
)
def test_silence_is_told_only_while_the_agent_works_and_nothing_is_asked(events: list[Event], is_told: bool) -> None:
    watcher = Watcher()
    watcher.receive(events, 0)
    assert bool(silences(watcher, 100)) is is_told


def test_silence_counts_from_an_answer_and_from_a_new_connection(watcher: Watcher) -> None:
    watcher.receive([OPENED, TurnStarted("ann"), Asked(question(1))], 0)
    watcher.answered(1, 500)
    assert watcher.silence_due == 560
    watcher.link_changed("lost", 700, up=False)
    assert silences(watcher, 1000) == []
    watcher.link_changed("back", 900, up=True)
    assert watcher.silence_due == 960


def test_the_session_opened_again_is_not_written_again() -> None:
    assert watch(OPENED, said("a"), OPENED) == "a\n"


@given(st.lists(texts, min_size=1, max_size=8), st.booleans())
def test_a_message_reads_the_same_however_it_was_streamed(parts: list[str], thought: bool) -> None:
    kind = "thought" if thought else "agent"
    transcript = Transcript()
    transcript.apply(said("".join(parts), kind))
    whole = "".join(plain_text(render(block)) for block in transcript.blocks)
    streamed = watch(*(said(part, kind) for part in parts))
    if streamed:
        assert streamed == whole
    else:
        assert whole in ("", "\n", "~ \n")


EVENTS = st.one_of(
    any_updates.map(lambda update: Updated(update if isinstance(update, dict) else {}, "")),
    st.builds(Updated, st.builds(said, texts), texts),
    st.just(OPENED),
    st.builds(lambda text: Asked(Question(1, {"title": text}, (Option(text, text, text),))), texts),
    st.builds(Withdrawn, st.integers(0, 2)),
    st.builds(Decided, texts, texts),
    st.builds(TurnStarted, texts),
    st.builds(TurnEnded, texts, texts),
    st.builds(Queued, st.integers(0, 5), st.lists(st.tuples(texts, texts), max_size=4).map(tuple)),
    st.builds(Failed, texts, texts),
    st.builds(Closed, texts),
)


@given(st.lists(EVENTS, max_size=12), st.none() | st.integers(0, 2))
@effort(30)
def test_what_is_written_has_no_control_character_but_line_feeds(events: list[Event], last: int | None) -> None:
    written = watch(*events, last=last)
    assert written.replace("\n", "").isprintable()
    assert written == "" or written.endswith("\n")
    assert re.sub(r"\x1b\[[0-9;]+m", "", watch(*events, last=last, colour=True)) == written


@given(EVENTS)
def test_json_has_one_line_of_ascii_for_each_event(event: Event) -> None:
    line = json_line(event)
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert line.isascii()
    assert "type" in json.loads(line)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_updates_are_verbatim_in_json(text: str) -> None:
    assert json.loads(json_line(Updated(said(text), "")))["update"] == said(text)
    assert json.loads(json_line(Updated(said(text), "c")))["sub"] == "c"


def test_the_connection_is_told_in_json() -> None:
    assert json.loads(link_json_line(up=False, text="lost")) == {"type": "disconnected", "message": "lost"}
    assert json.loads(link_json_line(up=True, text="back"))["type"] == "connected"


def test_in_a_terminal_messages_are_wrapped_at_words_and_code_is_not() -> None:
    diff = {"type": "diff", "path": "/a", "oldText": None, "newText": "one two three four five six seven"}
    shown = watch(
        said("one two three four five six", "user"),
        said("seven eight nine ten ele"),
        said("ven twelve"),
        tool("t", title="Edit", status="completed", content=[diff]),
        columns=lambda: 25,
    )
    assert shown.startswith("> one two three four\n  five six\n\nseven eight nine ten ")
    assert "\b\b\b   \neleven twelve\n" in shown
    assert "+ one two three four five six seven\n" in shown


FIELDS = read_form({"properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]})
FORM = Question(
    7,
    {"title": "Who?"},
    (Option("accept", "Fill in", "fill_in"), Option("decline", "Decline", "")),
    is_form=True,
    fields=FIELDS or (),
)


def filling(columns: int = 60, **options: Any) -> Watcher:
    watcher = Watcher(columns=lambda: columns, **options)
    watcher.receive([OPENED, Asked(FORM)], 0)
    watcher.take()
    watcher.begin_form(FORM)
    return watcher


def typed(watcher: Watcher, *keys: str) -> list[object]:
    return [one for one in map(watcher.type, keys) if one is not None]


def test_what_is_typed_is_repeated_on_a_terminal_that_cannot_erase_a_line() -> None:
    watcher = filling(erases=False)
    assert watcher.take() == "  name\n  > "
    typed(watcher, "a")
    assert watcher.take() == "\n  > a"


def test_a_form_is_filled_in_line_by_line() -> None:
    watcher = filling()
    assert watcher.is_typing
    assert watcher.take() == "  name\n  > "
    assert typed(watcher, "a", "x", "\x7f", "nn") == []
    assert watcher.take() == "\r\x1b[K  > ann"
    assert watcher.take() == ""
    assert typed(watcher, "\r", "seven", "\r") == []
    assert watcher.take() == ("\r\x1b[K  > ann\n  age (optional)\n  > seven\n    a whole number\n  > ")
    assert typed(watcher, "7\n") == [(FORM, {"name": "ann", "age": 7})]
    assert not watcher.is_typing
    watcher.answered(7, 0)
    assert watcher.take() == "\r\x1b[K  > 7\n"


def test_what_happens_while_a_field_is_typed_is_written_above_it() -> None:
    watcher = filling()
    typed(watcher, "a")
    watcher.take()
    watcher.receive([Updated(said("hello"), "")], 0)
    assert watcher.take() == "\r\x1b[K\nhello\n  > a"


def test_esc_leaves_a_form_and_escape_sequences_do_not() -> None:
    watcher = filling()
    typed(watcher, "\x1b[A", "a\x15b\x1bc\nd")
    assert watcher.take().endswith("  > b c d")
    typed(watcher, "\x1b")
    assert not watcher.is_typing
    assert watcher.take() == "\r\x1b[K? The agent asks: Who?\n    name, age (optional)\n  [f] Fill in   [2] Decline\n"


@pytest.mark.parametrize("end", ["\r", "\x1b"])
def test_the_open_question_is_written_again_after_a_text_that_steers(end: str) -> None:
    watcher = Watcher(columns=lambda: 60)
    watcher.receive([OPENED, Asked(FORM)], 0)
    asked = watcher.take()[-80:]
    watcher.begin_form(STEERING)
    typed(watcher, "left", end)
    assert not watcher.is_typing
    assert watcher.take().endswith(asked)


def test_a_form_that_another_client_answers_is_not_asked_for_any_more() -> None:
    watcher = filling()
    watcher.take()
    watcher.receive([Withdrawn(7)], 0)
    assert not watcher.is_typing
    assert watcher.type("x") is None
    assert watcher.take() == "\r\x1b[K"


def test_letters_for_a_form_that_has_closed_do_not_answer_the_next_question() -> None:
    watcher = filling()
    watcher.receive([Asked(question(8)), Withdrawn(7)], 10)
    assert watcher.key("1", 10 + TYPING_PAUSE - 0.1) is None
    assert watcher.key("1", 10 + TYPING_PAUSE) == (question(8), ALLOW)


def test_of_a_long_line_the_end_is_shown() -> None:
    watcher = filling(columns=30)
    typed(watcher, "x" * 100 + "end")
    assert watcher.take() == "  name\n  > " + "x" * 22 + "end"


def test_markdown_is_shown_as_it_streams_by_attributes_alone() -> None:
    watcher = Watcher(colour=True)
    written = []
    for text in ("see *", "*th", "is** `a\x1b[31m", "`\n#", " T\n```\n# a", "\n``", "`\n# b"):
        watcher.receive([OPENED, Updated(said(text), "")], 0)
        written.append(watcher.take())
    watcher.end()
    written.append(watcher.take())
    bold, code, title, fence, end = "\x1b[1m", "\x1b[36m", "\x1b[1;4m", "\x1b[2m", "\x1b[0m"
    assert written == [
        "see ",
        f"{bold}**th{end}",
        f"{bold}is**{end} {code}`a\\x1b[31m{end}",
        f"{code}`{end}\n",
        f"{title}# T{end}\n{fence}```{end}\n{code}# a{end}",
        "\n",
        f"{fence}```{end}\n{title}# b{end}",
        "\n",
    ]


def test_a_turn_that_runs_already_does_not_cut_the_message_in_two() -> None:
    assert watch(said("Hel"), OPENED, TurnStarted("ann", running=True), said("lo")) == "Hello\n"
    assert watch(said("Hel"), OPENED, TurnStarted("ann"), said("lo")) == "Hel\n\nlo\n"


def test_signs_of_markdown_that_wait_are_written_before_what_interrupts_them() -> None:
    assert watch(said("a *"), tool(title="Read"), said("```"), tool(title="Edit"), said("# b"), colour=False) == (
        "a *\n○ Read\n\n```\n○ Edit\n\n# b\n"
    )
    # A block of code ends with its message.
    assert watch(said("```"), tool(title="Edit"), said("# b"), colour=True).endswith("\x1b[1;4m# b\x1b[0m\n")


def test_of_turns_in_the_history_the_ends_are_written_that_were_not_done(watcher: Watcher) -> None:
    failed = TurnEnded("", "", "try again in 32 s", is_past=True)
    watcher.receive([failed, TurnEnded("end_turn", "", is_past=True)], 0.0)
    watcher.receive([Opened("s", (), "")], 0.0)
    assert "the turn has failed: try again in 32 s" in (text := watcher.take())
    assert text.count("the turn") == 1
    watcher.receive([TurnEnded("end_turn", "")], 0.0)
    assert "the turn has ended" in watcher.take()
