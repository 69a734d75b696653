"""Dialogs over the screen: a choice, the form of a new session, help."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import urwid

from acp_gateway.terminal.rendering import Line, Span, Style
from acp_gateway.tui.lists import ChoiceList
from acp_gateway.tui.markup import BOX, markup

KEYS: Final = (
    ("Enter", "send the prompt; open the session in the list"),
    ("Alt-Enter", "a new line"),
    ("Ctrl-P, Ctrl-N", "an earlier prompt, a later one"),
    ("Tab", "to the list, the question, the prompt"),
    ("y, n, 1-9", "answer the question that is in focus"),
    ("PgUp, PgDn", "scroll the transcript; End follows it again"),
    ("Esc", "cancel the turn; close a dialog"),
    ("F1, Alt-H", "these keys"),
    ("F2, Alt-L", "show or hide the list of sessions"),
    ("F3, Alt-N", "a new session"),
    ("F4, Alt-M", "another mode"),
    ("F5, Alt-D", "show or hide inputs and outputs of tools"),
    ("F10, Ctrl-C", "leave; the agents go on"),
)
"""The keys of the program, for the help."""


class Dialog(urwid.WidgetWrap[Any]):
    """A box with a title.

    Args:
        title: its title.
        body: a box widget.
        close: called by Esc.
        width, height: columns and rows at most, with the frame.
    """

    def __init__(self, title: str, body: Any, close: Callable[[], None], *, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._close = close
        super().__init__(urwid.AttrMap(urwid.LineBox(body, title=title), BOX))

    def keypress(self, size: Any, key: str) -> str | None:
        """Close by Esc; pass everything else on."""
        if key == "esc":
            self._close()
            return None
        unhandled: str | None = super().keypress(size, key)
        return unhandled

    def over(self, below: Any) -> Any:
        """Return this dialog over another widget."""
        return urwid.Overlay(self, below, "center", self.width, "middle", self.height)


def choice_dialog(
    title: str, rows: Sequence[tuple[Hashable, Line]], choose: Callable[[Any], None], close: Callable[[], None]
) -> Dialog:
    """Return a dialog in which one of several lines is chosen."""
    choices = ChoiceList(choose)
    choices.show(rows)
    return Dialog(title, choices, close, width=50, height=min(len(rows), 12) + 2)


def help_dialog(close: Callable[[], None]) -> Dialog:
    """Return a dialog with the keys."""
    text = "\n".join(f"{key:<15} {meaning}" for key, meaning in KEYS)
    body = urwid.ListBox([urwid.Text(text)])
    return Dialog("Keys", body, close, width=72, height=len(KEYS) + 2)


class _Field(urwid.Edit):
    """A line that Enter finishes."""

    def __init__(self, caption: str, text: str, done: Callable[[], None]) -> None:
        self._done = done
        super().__init__(caption, text, wrap="clip")

    def keypress(self, size: Any, key: str) -> str | None:
        if key == "enter":
            self._done()
            return None
        unhandled: str | None = super().keypress(size, key)
        return unhandled


def new_session_dialog(
    agents: Sequence[str],
    agent: str,
    folders: Sequence[str],
    create: Callable[[str, str], None],
    close: Callable[[], None],
) -> Dialog:
    """Return a dialog for the agent and the directory of a new session.

    Args:
        agents: names to choose from; the form has a field for the name if there is none.
        agent: the name that is proposed; empty for the gateway's default.
        folders: directories that are proposed; the first is in the field already.
        create: called with the agent and the directory.
        close: called by Esc.
    """
    group: list[Any] = []
    buttons: list[Any] = [urwid.RadioButton(group, name, state=name == agent) for name in agents]

    def done() -> None:
        chosen = [button.label for button in buttons if button.state]
        create(chosen[0] if chosen else "" if buttons else name.edit_text.strip(), folder.edit_text.strip())

    name = _Field("Agent (empty: the default): ", agent, done)
    folder = _Field("Directory at the gateway: ", folders[0], done)
    folder.set_edit_pos(len(folders[0]))

    def take(path: str) -> None:
        folder.set_edit_text(path)
        folder.set_edit_pos(len(path))
        body.set_focus(rows.index(folder))

    others = [urwid.Button(path, lambda button: take(button.label)) for path in folders[1:]]
    hint = urwid.Text(markup([[Span("Space chooses an agent or a directory, Enter opens the session.", Style.DIM)]]))
    rows: list[Any] = [*(buttons or [name]), urwid.Divider(), folder, *others, urwid.Divider(), hint]
    body = urwid.ListBox(urwid.SimpleFocusListWalker(rows))
    body.set_focus(rows.index(folder))
    return Dialog("New session", body, close, width=70, height=min(len(rows), 16) + 2)
