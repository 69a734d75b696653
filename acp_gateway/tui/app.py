"""The screen of `chat`: the list of sessions, the transcript of one, its question and the prompt, and the keys."""

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal

import trio
import urwid

from acp_gateway.client.control import Rights
from acp_gateway.client.dialing import Destination
from acp_gateway.client.ports.session_ports import ports_of
from acp_gateway.client.session_list import ListHandler, Overview, SessionList
from acp_gateway.errors import GatewayError
from acp_gateway.printable import counted
from acp_gateway.terminal.ansi import cells
from acp_gateway.terminal.dialogue import Question, queue_at
from acp_gateway.terminal.port_lines import name_ports
from acp_gateway.terminal.rendering import Span, Style, one_line
from acp_gateway.terminal.session_lines import ordered, session_line, tell_apart
from acp_gateway.tui.composer import Composer, ComposerBox
from acp_gateway.tui.dialogs import (
    ChoiceList,
    Dialog,
    choice_dialog,
    form_dialog,
    help_dialog,
    new_session_dialog,
    time_dialog,
)
from acp_gateway.tui.markup import BAR, PALETTE
from acp_gateway.tui.open_session import MakeSettings, OpenSession, Ports

LIST_WIDTH: Final = 30
"""Columns of the list of sessions at least; it is as wide as its rows where there is room."""

SESSION_WIDTH: Final = 80
PROMPT_WIDTH: Final = 20
"""Columns beside the list that a session keeps, and an empty prompt."""

NARROW: Final = 80
"""Columns below which the list is hidden while a session is shown, until it is wanted."""

HELP: Final = "F1 keys  F2 list  F3 new  F4 mode  F5 details  F6 steer  Tab focus  Esc cancel  F10 leave"

LETTERS: Final = {"h": "f1", "l": "f2", "n": "f3", "m": "f4", "d": "f5", "s": "f6", "t": "f7", "w": "f8"}
"""Letters that do the same with Alt as a function key."""

FOLDERS: Final = 6
"""Directories of other sessions that are proposed for a new one: the dialog fits into 24 rows."""

MOST_OPEN: Final = 8
"""Sessions that stay open beside the one that is shown: each has a connection and a transcript. Beyond it, the one that
was not shown for the longest time is left, unless it was opened here: with its connection its agent might end."""

OBSERVER: Final = "observer"
"""The role of clients that get no questions."""

_ALWAYS_SCROLLING: Final = frozenset({"page up", "page down"})
"""Keys that scroll the transcript also while a text is being written; the others move in the text."""


@dataclass(frozen=True)
class Gateway:
    """A gateway as the command line names it."""

    name: str
    target: str
    """Its name for other commands."""
    control: Callable[[], Destination]
    """Returns the destination of a control connection."""
    join: Callable[[str], Destination]
    """Returns the destination of a connection that joins a session."""
    open: Callable[[str], Destination]
    """Returns the destination of a connection for a new session of an agent; empty for the default one."""
    settings: MakeSettings


class _Root(urwid.WidgetPlaceholder[Any]):
    """The whole screen, which gives each key to the program first, one after the other."""

    def __init__(self, widget: Any, handle: Callable[[str], bool]) -> None:
        super().__init__(widget)
        self._handle = handle

    def selectable(self) -> bool:
        """Return True: the program has keys also where no widget has the focus."""
        return True

    def keypress(self, size: Any, key: str) -> str | None:
        """Handle a key."""
        if self._handle(key):
            return None
        unhandled: str | None = super().keypress(size, key)
        return unhandled


class Chat:
    """The program.

    Args:
        gateway: the gateway.
        lines, size: lines of a diff that are shown, and characters of each transcript that are kept, at most.
        screen: the terminal; None for that of the process.
        colour: False to use bold, underlined and reversed text alone.
    """

    def __init__(self, gateway: Gateway, *, lines: int, size: int, screen: Any = None, colour: bool = True) -> None:
        self._gateway = gateway
        self._lines, self._size = lines, size
        self._sessions: list[OpenSession] = []
        self._shown: OpenSession | None = None
        self._overview: Overview | None = None
        self._problem = "connecting"
        # Of the open sessions, as the list shows them.
        self._states: list[tuple[str, str, str]] = []
        self._spawn: Callable[[OpenSession], None] = lambda _: None
        self._following = SessionList(gateway.control, ListHandler(self._received, self._lost))
        self._leave = trio.Event()
        # Widgets, from the top to the bottom.
        self._title = urwid.Text("", wrap="ellipsis")
        self._list = ChoiceList(self.open)
        # Columns of the longest row of the list.
        self._widest = 0
        self._composer = Composer(self._prompt)
        self._composer_box = ComposerBox(self._composer)
        self._right: Any = urwid.Pile([("pack", self._composer_box)])
        self._columns: Any = urwid.Columns([self._right], dividechars=1)
        self._frame = urwid.Frame(
            self._columns,
            header=urwid.AttrMap(self._title, BAR),
            footer=urwid.AttrMap(urwid.Text(HELP, wrap="ellipsis"), BAR),
        )
        self.root: Any = _Root(self._frame, self._handle)
        """The widget of the whole screen."""
        self._screen = screen or urwid.raw_display.Screen(bracketed_paste_mode=True)
        if not colour:
            self._screen.set_terminal_properties(colors=1)
        self._shows_list = True
        # The session, the parts of the screen, and the one in focus, as they are arranged.
        self._layout: tuple[OpenSession | None, list[str], str, int] | None = None
        self._focus = "list"
        self._pasting = False
        # The form in the dialog that is open, and its session.
        self._form: tuple[OpenSession, Question] | None = None
        self._actions: dict[str, Callable[[], None]] = {
            "f1": lambda: self._show_dialog(help_dialog(self._close_dialog)),
            "f2": self._toggle_list,
            "f3": self._ask_for_new_session,
            "f4": self._ask_for_mode,
            "f5": self._toggle_details,
            "f6": lambda: self._composer.finish(partial(self._prompt, steers=True)),
            "f7": self._ask_for_time,
            "f8": self._ask_for_kept,
            "tab": self._move_focus,
            "esc": self._cancel,
        }
        # Many terminals use some function keys themselves.
        self._actions |= {f"meta {letter}": self._actions[key] for letter, key in LETTERS.items()}
        self._update()

    async def run(self, session: str = "") -> None:
        """Show the program until it is left; begin with a session if one is given.

        Raises `GatewayError` if the gateway can't be reached at first, or refuses.
        """
        events = urwid.TrioEventLoop()
        loop = urwid.MainLoop(
            self.root,
            PALETTE,
            screen=self._screen,
            event_loop=events,
            handle_mouse=False,
            input_filter=self._resized,
        )
        failures: list[GatewayError] = []

        async def follow() -> None:
            try:
                await self._following.run()
            except GatewayError as error:
                failures.append(error)
                self._leave.set()

        with loop.start():
            async with trio.open_nursery() as nursery:
                self._spawn = lambda opened: nursery.start_soon(opened.run)
                nursery.start_soon(follow)
                nursery.start_soon(self._leave_on_signal)
                nursery.start_soon(events.run_async)
                if session:
                    self.open(session)
                await self._leave.wait()
                nursery.cancel_scope.cancel()
        if failures:
            raise failures[0]

    async def _leave_on_signal(self) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                self._leave.set()

    @property
    def _is_wide(self) -> bool:
        columns: int = self._screen.get_cols_rows()[0]
        return columns >= NARROW

    # Keys

    def _resized(self, keys: list[Any], _raw: Sequence[int]) -> list[Any]:
        """Fit the screen into another size; return the input, which urwid handles further."""
        if "window resize" in keys:
            self._shows_list = self._shown is None or self._is_wide
            self._arrange()
        return keys

    def _handle(self, key: str) -> bool:
        """Handle a key of the program; return False if it is for the widget in focus."""
        if key in ("begin paste", "end paste"):
            self._pasting = key == "begin paste"
        if self._pasting:
            if self.root.original_widget is self._frame and self._focus != "prompt":
                # Letters of a text must neither answer a question nor choose a session.
                self._focus = "prompt"
                self._arrange()
            return False
        if key == "f10":
            self._leave.set()
            return True
        if self.root.original_widget is not self._frame:
            return False  # A dialog is open.
        if key in _ALWAYS_SCROLLING or (
            key in ("home", "end") and self._focus != "list" and not self._composer.edit_text
        ):
            if self._shown is not None:
                self._shown.transcript_box.scroll(key)
            return True
        action = self._actions.get(key)
        if action is not None:
            action()
        return action is not None

    def _toggle_list(self) -> None:
        self._shows_list = not self._shows_list
        self._focus = "list" if self._shows_list else "prompt"
        self._arrange()

    def _toggle_details(self) -> None:
        if self._shown is not None:
            self._shown.transcript_box.toggle_details()

    def _move_focus(self) -> None:
        places = self._places()
        self._focus = places[(places.index(self._focus) + 1) % len(places) if self._focus in places else 0]
        self._arrange()

    def _places(self) -> list[str]:
        """Return the parts of the screen that can have the focus."""
        asked = self._shown is not None and self._shown.question_box.selectable()
        return [*(["list"] if self._shows_list else []), *(["question"] if asked else []), "prompt"]

    def _cancel(self) -> None:
        if self._shown is not None and self._shown.conversation.is_working:
            self._shown.cancel()

    def _prompt(self, text: str, *, steers: bool = False, queue: Mapping[str, Any] | None = None) -> bool:
        return self._shown is not None and self._shown.prompt(text, steers=steers, queue=queue)

    def _ask_for_time(self) -> None:
        """Send the text that is written at a time."""

        def send(at: str, *, auto: bool) -> None:
            self._close_dialog()
            queue = queue_at(at, datetime.now().astimezone(), auto=auto)
            self._composer.finish(partial(self._prompt, queue=queue))

        if self._shown is not None:
            self._show_dialog(time_dialog(send, self._close_dialog))

    def _ask_for_kept(self) -> None:
        """Send a prompt that waits for a time or a person, or remove it."""
        shown = self._shown
        if shown is None or not shown.conversation.kept:
            return

        def choose(change: tuple[str, Literal["release", "remove"]]) -> None:
            self._close_dialog()
            shown.change_kept(*change)

        kept, verbs = shown.conversation.kept, {"release": "Send", "remove": "Remove"}
        rows = [
            ((one.key, action), [Span(f"{verb}: {one_line(one.text)}")])
            for one in kept
            for action, verb in verbs.items()
            if action == "remove" or one.state != "lost"
        ]
        self._show_dialog(choice_dialog("Prompts that wait", rows, choose, self._close_dialog))

    # Sessions

    def open(self, session: str) -> None:
        """Show a session, and join it if that was not done before."""
        for opened in self._sessions:
            if opened.session == session and not opened.ended:
                self._show(opened)
                return
        self._add(session, "/", lambda: self._gateway.join(session))

    def create(self, agent: str, cwd: str) -> None:
        """Open a new session."""
        self._close_dialog()
        self._add("", cwd, lambda: self._gateway.open(agent), agent.rpartition("/")[0])

    def _add(self, session: str, cwd: str, destination: Callable[[], Destination], machine: str = "") -> None:
        settings, limits = self._gateway.settings, {"lines": self._lines, "size": self._size}
        ports = Ports(self._gateway.target, lambda name: ports_of(self._gateway.control(), name))
        opened = OpenSession(session, cwd, destination, settings, self._update, ports, **limits, machine=machine)
        opened.when_open = self._following.refresh
        opened.when_form = partial(self._ask_for_fields, opened)
        self._show(opened)
        self._spawn(opened)

    def _show(self, opened: OpenSession) -> None:
        """Show an open session; the others that stay open are ordered by the time when they were shown."""
        self._shown = opened
        self._sessions = [*(one for one in self._sessions if one is not opened and not one.ended), opened]
        for one in [one for one in self._sessions[:-1] if one.was_joined][:-MOST_OPEN]:
            one.close()
        self._focus = "prompt"
        self._shows_list = self._shows_list and self._is_wide
        self._update_list()

    # The gateway

    def _received(self, overview: Overview) -> None:
        self._overview, self._problem = overview, ""
        self._update_list()

    def _lost(self, error: GatewayError) -> None:
        self._problem = f"reconnecting: {error}"
        self._update()

    # Dialogs

    def _show_dialog(self, dialog: Dialog) -> None:
        self.root.original_widget = dialog.over(self._frame)

    def _close_dialog(self) -> None:
        self._form = None
        self.root.original_widget = self._frame

    def _ask_for_new_session(self) -> None:
        rights = Rights() if self._overview is None else self._overview.rights
        session = self._described(self._shown)
        agent = str(session.get("agent") or rights.default_agent)
        known = [one["cwd"] for one in (session, *ordered(self._listed())) if one.get("cwd")] + list(rights.folders)
        # What is not printable can't be shown and edited as it is.
        folders = [folder for folder in dict.fromkeys(known) if folder.isprintable()][:FOLDERS]
        agents = [name for name in rights.agents if name.isprintable()]
        self._show_dialog(new_session_dialog(agents, agent, folders or ["/"], self.create, self._close_dialog))

    def _ask_for_mode(self) -> None:
        shown = self._shown
        if shown is None or not shown.conversation.modes:
            return

        def choose(mode: str) -> None:
            self._close_dialog()
            shown.set_mode(mode)

        rows = [(mode, [Span(one_line(name))]) for mode, name in shown.conversation.modes]
        self._show_dialog(choice_dialog("Mode", rows, choose, self._close_dialog))

    def _ask_for_fields(self, opened: OpenSession, question: Question) -> None:
        def submit(content: Mapping[str, object]) -> None:
            self._close_dialog()
            opened.fill_in(question, content)

        self._show_dialog(form_dialog(question, submit, self._close_dialog))
        self._form = (opened, question)

    # Drawing

    def _update_list(self) -> None:
        """Show the sessions of the list."""
        shown = None if self._shown is None else self._shown.session
        self._states = self._present_states()
        listed = ordered(self._listed())
        marks = tell_apart(listed, datetime.now(UTC))
        rows = [
            (
                session["sessionId"],
                session_line(session, is_open=session["sessionId"] == shown, mark=marks.get(session["sessionId"], "")),
            )
            for session in listed
        ]
        self._list.show(rows)
        self._widest = max((cells("".join(text for text, _ in line)) for _, line in rows), default=0)
        self._update()

    def _update(self) -> None:
        """Show the present state of the session, which changes with each message: this has to be fast."""
        if self._present_states() != self._states:
            self._update_list()
            return
        if self._form is not None and not (questions := self._form[0].conversation.questions).has(self._form[1].id):
            self._close_dialog()  # Answered by another client, or withdrawn.
            questions.defer(trio.current_time())
        self._title.set_text(self._title_text())
        asked = "question" in self._places()
        if asked and self._focus == "prompt" and not (self._composer.edit_text or self._pasting):
            self._focus = "question"
        elif not asked and self._focus == "question":
            self._focus = "prompt"
        self._arrange()

    def _present_states(self) -> list[tuple[str, str, str]]:
        """Return what the list shows of the sessions that are open here."""
        return [(one.session, one.state, one.conversation.transcript.title) for one in self._sessions]

    def _title_text(self) -> str:
        parts = [self._gateway.name]
        if self._shown is not None:
            session = self._described(self._shown)
            title = self._shown.conversation.transcript.title or session.get("title") or self._shown.session
            parts += [title or "a new session", session.get("agent", ""), self._shown.state]
            parts += [self._shown.conversation.mode, name_ports(self._shown.ports.known)]
        elif self._overview is not None:
            listing = self._overview.listing
            more = f" and {listing.more} more that are not listed" if listing.more > 0 else ""
            parts.append(f"{counted(len(listing.sessions), 'session')}{more}: Enter opens one, F3 a new one")
        parts.append(self._problem)
        return " " + " · ".join(one_line(str(part)) for part in parts if part)

    def _listed(self) -> list[dict[str, Any]]:
        """Return the sessions as the gateway has listed them, those that are open here as they are now."""
        if self._overview is None:
            return []
        opened = {one.session: one for one in self._sessions if one.session}
        decides = self._overview.rights.role != OBSERVER
        return [
            opened[one["sessionId"]].described(one, decides=decides) if one["sessionId"] in opened else one
            for one in self._overview.listing.sessions
        ]

    def _described(self, opened: OpenSession | None) -> dict[str, Any]:
        """Return a session as the gateway describes it, or nothing if it does not yet."""
        session = None if opened is None else opened.session
        return next((one for one in self._listed() if one["sessionId"] == session), {})

    def _list_width(self) -> int:
        """Return the columns of the list: those of its longest row, as far as there is room beside a session."""
        columns: int = self._screen.get_cols_rows()[0]
        room = columns - (PROMPT_WIDTH if self._shown is None else SESSION_WIDTH)
        return max(LIST_WIDTH, min(room, self._widest))

    def _arrange(self) -> None:
        """Put the widgets in their places, and give the focus to one, if this has changed."""
        width = self._list_width()
        layout = (self._shown, self._places(), self._focus, width)
        if layout == self._layout:
            return
        self._layout = layout
        right: list[tuple[Any, Any]] = []
        if self._shown is None:
            right.append((urwid.SolidFill(), ("weight", 1)))
        else:
            right.append((self._shown.transcript_box, ("weight", 1)))
            if self._shown.question_box.selectable():
                right.append((self._shown.question_box, ("pack", None)))
        right.append((self._composer_box, ("pack", None)))
        self._right.contents[:] = right
        self._right.focus_position = len(right) - (2 if self._focus == "question" else 1)
        columns: list[tuple[Any, Any]] = []
        if self._shows_list:
            line = urwid.AttrMap(urwid.SolidFill("│"), Style.DIM.value)
            columns = [(self._list, ("given", width, True)), (line, ("given", 1, True))]
        self._columns.contents[:] = [*columns, (self._right, ("weight", 1, True))]
        self._columns.focus_position = 0 if self._focus == "list" and self._shows_list else len(columns)
