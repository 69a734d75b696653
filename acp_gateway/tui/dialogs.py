"""Dialogs over the screen: a choice, the form of a new session, help."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

import urwid

from acp_gateway.terminal.dialogue import Question
from acp_gateway.terminal.forms import Field
from acp_gateway.terminal.rendering import Line, Span, Style, one_line
from acp_gateway.tui.markup import BOX, FOCUS, PALETTE, markup


class Row(urwid.WidgetWrap[Any]):
    """A line that can be chosen.

    Args:
        value: stands for it.
        line: the line; what does not fit is cut.
    """

    def __init__(self, value: Hashable, line: Line) -> None:
        self.value = value
        text = urwid.Text(markup([line]), wrap="ellipsis")
        super().__init__(urwid.AttrMap(text, None, dict.fromkeys([None, *(name for name, *_ in PALETTE)], FOCUS)))

    def selectable(self) -> bool:
        """Return True: it can have the focus."""
        return True

    def keypress(self, size: Any, key: str) -> str | None:
        """Return the key: the list handles it."""
        return key


class ChoiceList(urwid.ListBox[Any]):
    """A list to choose from.

    Args:
        choose: called with the value of the row that was chosen.
    """

    def __init__(self, choose: Callable[[Any], None]) -> None:
        self._rows: Any = urwid.SimpleFocusListWalker([])
        self._choose = choose
        super().__init__(self._rows)

    @property
    def value(self) -> Any:
        """The value of the row in focus; None if there is none."""
        return self._rows[self._rows.focus].value if self._rows else None

    def show(self, rows: Sequence[tuple[Hashable, Line]]) -> None:
        """Show other rows. The value in focus keeps it; if it is gone, the first row gets it."""
        before = self.value
        self._rows[:] = [Row(value, line) for value, line in rows]
        if self._rows:
            self._rows.set_focus(next((at for at, row in enumerate(self._rows) if row.value == before), 0))

    def keypress(self, size: Any, key: str) -> str | None:
        """Choose by Enter, and move by arrows."""
        if key == "enter" and self._rows:
            self._choose(self.value)
            return None
        unhandled: str | None = super().keypress(size, key)
        return unhandled


KEYS: Final = (
    ("Enter", "send the prompt; open the session; Alt: a new line"),
    ("Ctrl-P, Ctrl-N", "an earlier prompt, a later one"),
    ("Tab", "to the list, the question, the prompt"),
    ("y, n, f, 1-9", "answer the question that is in focus; fill in its form"),
    ("Down, Up", "another part of a long question"),
    ("PgUp, PgDn", "scroll the transcript; End follows it again"),
    ("Esc", "cancel the turn; close a dialog"),
    ("F1, Alt-H", "these keys"),
    ("F2, Alt-L", "show or hide the list of sessions"),
    ("F3, Alt-N", "a new session"),
    ("F4, Alt-M", "another mode"),
    ("F5, Alt-D", "show or hide inputs and outputs of tools"),
    ("F6, F7, F8", "send into the turn; later; what waits (Alt-S, T, W)"),
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


def time_dialog(send: Callable[..., None], close: Callable[[], None]) -> Dialog:
    """Return a dialog for the time of a prompt; `send` is called with the text and `auto`."""

    def done() -> None:
        if field.edit_text.strip():
            send(field.edit_text.strip(), auto=auto.state)

    field, auto = _Field("When (06:00, in 2 h, limit): ", "", done), urwid.CheckBox("even after a restart")
    body = urwid.ListBox(urwid.SimpleFocusListWalker([field, _Choice(auto, done)]))
    return Dialog("Send later", body, close, width=60, height=4)


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

    def move_cursor_to_coords(self, size: Any, x: Any, y: int) -> bool:
        """Put the cursor at the end if the field is entered from another row."""
        if y != 0:
            return bool(super().move_cursor_to_coords(size, x, y))
        self.set_edit_pos(len(self.edit_text))
        return True


class _Pick(urwid.WidgetWrap[Any]):
    """An agent or a directory that can be picked, in reverse while it has the focus.

    Args:
        button: an urwid button; Space presses it.
        done: called by Enter, after the button was pressed.
    """

    def __init__(self, button: Any, done: Callable[[], None]) -> None:
        self._button, self._done = button, done
        super().__init__(urwid.AttrMap(button, None, FOCUS))

    def keypress(self, size: Any, key: str) -> str | None:
        unhandled: str | None = self._button.keypress(size, " " if key == "enter" else key)
        if key == "enter":
            self._done()
            return None
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
        agent: the name that is proposed, and has the focus; empty for the gateway's default.
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

    others = [_Pick(urwid.Button(path, lambda button: take(button.label)), done) for path in folders[1:]]
    choices: list[Any] = [_Pick(button, done) for button in buttons] or [name]
    rows: list[Any] = [*choices, urwid.Divider(), folder, *others]
    body = urwid.ListBox(urwid.SimpleFocusListWalker(rows))
    several = len(agents) > 1
    # With one agent there is only the directory to choose.
    body.set_focus([*agents].index(agent) if several and agent in agents else 0 if several else rows.index(folder))
    hint = urwid.Text(markup([[Span("Space chooses, Enter chooses and opens the session.", Style.DIM)]]))
    framed: Any = urwid.Frame(body, footer=hint)
    return Dialog("New session", framed, close, width=70, height=min(len(rows), 16) + 4)


class _Choice(_Pick):
    """A choice of a form, which Space alone presses."""

    def keypress(self, size: Any, key: str) -> str | None:
        if key == "enter":
            self._done()
            return None
        return super().keypress(size, key)


class _Entry:
    """The widgets of a field of a form.

    Args:
        field: the field.
        done: called by Enter.
    """

    def __init__(self, field: Field, done: Callable[[], None]) -> None:
        self.field = field
        described = [
            [Span(field.label, Style.QUESTION)],
            *([[Span(one_line(field.hint), Style.DIM)]] if field.hint else []),
        ]
        heading: list[Any] = [urwid.Text(markup(described))]
        default = field.default
        self._choices: list[Any] = []
        self._text: Any = None
        # The default as it is shown, which may be less than all of it.
        self._shown = "" if default is None else one_line(str(default))
        group: list[Any] = []
        match field.kind:
            case "boolean":
                self._choices = [urwid.CheckBox(one_line(field.title), state=default is True)]
                heading = heading[:0] if not field.hint else [urwid.Text(markup(described[1:]))]
            case "one":
                buttons = [(choice.name, choice.value == default) for choice in field.choices]
                self._choices = [urwid.RadioButton(group, one_line(name), state=state) for name, state in buttons]
            case "several":
                chosen = default if isinstance(default, list) else []
                self._choices = [urwid.CheckBox(one_line(name), state=value in chosen) for value, name in field.choices]
            case _:
                self._text = _Field("> ", self._shown, done)
        inputs = [_Choice(button, done) for button in self._choices] or [self._text]
        self.first = inputs[0]
        """The widget that gets the focus if the field is wrong."""
        self.rows: list[Any] = [*heading, *inputs, urwid.Divider()]

    def value(self) -> object:
        """Return the value, None if it was left empty. Raises `ValueError` with what is wrong."""
        if self._text is not None:
            text = self._text.edit_text
            if text == self._shown:
                return self.field.check(self.field.default)
            return self.field.read(text) if text.strip() else self.field.check(None)
        states = [bool(button.state) for button in self._choices]
        if self.field.kind == "boolean":
            return states[0]
        values = [choice.value for choice, state in zip(self.field.choices, states, strict=True) if state]
        return self.field.check(values if self.field.kind == "several" else values[0] if values else None)


def form_dialog(
    question: Question, submit: Callable[[Mapping[str, object]], None], close: Callable[[], None]
) -> Dialog:
    """Return a dialog for the fields of a form.

    Args:
        question: the form.
        submit: called with its content, without the fields that were left empty.
        close: called by Esc.
    """
    hint = urwid.Text(markup([[Span("Space chooses, Enter sends, Esc answers later.", Style.DIM)]]))

    def done() -> None:
        content: dict[str, object] = {}
        for entry in entries:
            try:
                value = entry.value()
            except ValueError as error:
                hint.set_text(markup([[Span(f"{one_line(entry.field.title)}: {error}", Style.BAD)]]))
                body.set_focus(rows.index(entry.first))
                return
            if value is not None:
                content[entry.field.name] = value
        submit(content)

    entries = [_Entry(field, done) for field in question.fields]
    title = urwid.Text(one_line(str(question.tool.get("title") or "")))
    rows: list[Any] = [title, urwid.Divider(), *(row for entry in entries for row in entry.rows)]
    body = urwid.ListBox(urwid.SimpleFocusListWalker(rows))
    if entries:
        body.set_focus(rows.index(entries[0].first))
    framed: Any = urwid.Frame(body, footer=hint)
    return Dialog("The agent asks", framed, close, width=70, height=min(len(rows) + 2, 18) + 3)
