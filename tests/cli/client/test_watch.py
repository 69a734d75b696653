"""The command `watch`: how it finds its session, and its refusals. As a program: end_to_end/test_watch.py."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import trio

from acp_gateway.cli.client import watch as module
from acp_gateway.cli.client import watched_session
from acp_gateway.cli.client.gateway_options import Gateway
from acp_gateway.cli.client.watch import choose_session
from acp_gateway.client.control import Listing
from acp_gateway.client.destination import ConnectionOptions
from acp_gateway.client.dialing import Destination
from acp_gateway.errors import GatewayError, UsageError
from tests.kit.doubles import run_command as run


def session(name: str, **members: object) -> dict[str, Any]:
    described = {"sessionId": name, "agent": "demo", "cwd": "/", "owner": "ann", "live": True, "history": None}
    return described | {"connected": 0, "away": 0, "turn": False, "waiting": []} | members


def choose(monkeypatch: pytest.MonkeyPatch, *sessions: dict[str, Any], agent: str | None = None) -> str:
    monkeypatch.setattr(Gateway, "list_sessions", lambda _: Listing(list(sessions)))
    gateway = Gateway("box", ConnectionOptions(), 1.0, 1, 30.0, None)
    return choose_session(gateway, agent)


def test_the_only_live_session_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(monkeypatch, session("old", live=False), session("s")) == "s"
    # A question without a known session is listed for itself.
    unknown = session("?", cwd=None, waiting=[{}])
    assert choose(monkeypatch, session("s"), unknown) == "s"


@pytest.mark.parametrize(
    ("has_keyboard", "options", "observes"),
    [(True, [], False), (True, ["--observe"], True), (True, ["--json"], True), (False, [], True)],
)
def test_watch_is_an_observer_unless_it_can_decide(
    monkeypatch: pytest.MonkeyPatch, has_keyboard: bool, options: list[str], observes: bool
) -> None:
    seen: list[bool] = []

    async def watch_session(
        _session: str, destination: Callable[[], Destination], *_: object, interactive: bool, **__: object
    ) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(destination().observe)
        assert interactive is not observes

    monkeypatch.setattr(watched_session, "has_keyboard", lambda: has_keyboard)
    monkeypatch.setattr(watched_session, "single_keys", nullcontext)
    monkeypatch.setattr(watched_session, "watch_session", watch_session)
    result = run("watch", "tcp://127.0.0.1:7", "s", *options)
    assert (result.exit_code, seen) == (0, [observes]), result.output


def test_the_agent_narrows_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(monkeypatch, session("s"), session("t", agent="other"), agent="other") == "t"


def test_without_a_live_session_it_says_how_to_name_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no session is live there; `acp-gateway sessions`"):
        choose(monkeypatch, session("old", live=False))


def test_several_sessions_are_named_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match=r"2 sessions are live there: give the id of one of t\\x1b, s$"):
        choose(monkeypatch, session("s"), session("t\x1b"))


def test_of_many_sessions_the_newest_are_named_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match=r"100 sessions are live there: give the id of one of s99, s98, .* s90, …$"):
        choose(monkeypatch, *(session(f"s{n}") for n in range(100)))


def test_a_person_chooses_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setattr("click.prompt", lambda *_, **__: "2")
    printed: list[Any] = []
    monkeypatch.setattr("acp_gateway.cli.common.print_table", lambda *table: printed.append(table))
    fixed = session("s", title="Fix\x1b", updatedAt="2000-01-01T00:00:00Z")
    long = session("t-1234", title="x" * 100)
    assert choose(monkeypatch, long | {"sessionId": "t-5678", "waiting": [{}]}, fixed, long) == "s"
    ((heads, (first, second, third)),) = printed
    assert heads == ("", "TITLE", "AGENT", "AGE", "")
    assert first == ("1", f"{'x' * 41}… (5678)", "demo", "", "waits")
    assert second[:3] == ("2", "Fix\\x1b", "demo")
    assert second[3].endswith(" d")
    assert third == ("3", f"{'x' * 41}… (1234)", "demo", "", "")


def test_the_list_to_choose_from_has_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setattr("click.prompt", lambda *_, **__: "1")
    printed: list[Any] = []
    monkeypatch.setattr("acp_gateway.cli.common.print_table", lambda *table: printed.append(table))
    sessions = (session("gpu1/s", agent="gpu1/demo"), session("gpu2/s", agent="gpu2/demo"))
    assert choose(monkeypatch, *sessions) == "gpu2/s"
    ((heads, rows),) = printed
    assert [row[heads.index("AGENT")] for row in rows] == ["gpu2/demo", "gpu1/demo"]


@pytest.fixture
def hundred(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, list[list[str]]]]:
    """Choose among a hundred sessions by some answers; return the one that was chosen, and the numbers of each list."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    shown: list[list[str]] = []

    def print_table(_: object, rows: list[tuple[str, ...]]) -> None:
        shown.append([row[1] for row in rows])

    monkeypatch.setattr("acp_gateway.cli.common.print_table", print_table)
    monkeypatch.setattr("click.echo", lambda text, **_: shown.append([text]))
    sessions = [session(f"s{n}", title=f"task {n}", agent="other" if n == 7 else "demo") for n in range(100)]

    def choose_by(*answers: str) -> tuple[str, list[list[str]]]:
        left = list(answers)
        monkeypatch.setattr("sys.stdin", Terminal())
        monkeypatch.setattr("sys.stdout", Terminal())
        monkeypatch.setattr("click.prompt", lambda *_, **__: left.pop(0))
        return choose(monkeypatch, *sessions), shown

    return choose_by


def test_of_a_hundred_sessions_the_newest_are_shown_that_fit(
    hundred: Callable[..., tuple[str, list[list[str]]]],
) -> None:
    chosen, (listed, more) = hundred("2")
    assert chosen == "s98"
    assert listed == [f"task {n}" for n in range(99, 79, -1)]
    assert more == ["80 more: words of a title, an agent, a folder or an id show those that have them"]


@pytest.mark.parametrize(("words", "chosen"), [("TASK 42", "s42"), ("other", "s7"), ("s63", "s63")])
def test_words_that_one_session_has_choose_it(
    hundred: Callable[..., tuple[str, list[list[str]]]], words: str, chosen: str
) -> None:
    assert hundred(words)[0] == chosen


def test_words_that_several_sessions_have_show_them(hundred: Callable[..., tuple[str, list[list[str]]]]) -> None:
    chosen, shown = hundred("task s9", "11")
    assert shown[2] == [f"task {n}" for n in (*range(99, 89, -1), 9)]
    assert chosen == "s9"


def test_words_that_no_session_has_show_all_again(hundred: Callable[..., tuple[str, list[list[str]]]]) -> None:
    chosen, shown = hundred("nosuch", "1")
    assert (shown[2], shown[3]) == (["None has nosuch."], shown[0])
    assert chosen == "s99"


class Terminal:
    def isatty(self) -> bool:
        return True


def test_help_has_examples() -> None:
    done = run("watch", "--help")
    assert done.exit_code == 0
    assert "acp-gateway watch box SESSION --last 0" in done.stdout


def test_an_unknown_host_is_the_error_of_connect() -> None:
    done = run("watch", "box", "s")
    assert done.exit_code == 3
    assert '"box" is not in hosts.toml' in done.stderr


def test_an_empty_session_is_refused() -> None:
    assert run("watch", "tcp://127.0.0.1:1", "").exit_code == 2


@pytest.mark.parametrize(
    ("options", "colour"), [((), False), (("--color", "always"), True), (("--color", "never"), False)]
)
def test_colours_are_for_terminals_or_as_wanted(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], colour: bool
) -> None:
    made: list[bool] = []

    class Made:
        def __init__(self, *, colour: bool, **_: object) -> None:
            made.append(colour)
            raise GatewayError("far enough")

    monkeypatch.setattr("acp_gateway.terminal.watching.Watcher", Made)
    run("watch", "tcp://127.0.0.1:1", "s", *options)
    assert made == [colour]


@pytest.mark.parametrize(("variables", "colour"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_has_colours_unless_its_variables_say_no(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], colour: bool
) -> None:
    monkeypatch.setattr("sys.stdout", Terminal())
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert module._wants_colour() is colour
