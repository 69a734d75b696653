"""Forms of the agent: reads the fields of a JSON Schema, and what a person has entered for them.

The schema is the part of JSON Schema that elicitations have: an object of texts, numbers, booleans and choices.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast

from acp_gateway.terminal.content import list_of, members_of, text_of
from acp_gateway.terminal.rendering import Line, Span, Style, one_line

Kind = Literal["text", "number", "integer", "boolean", "one", "several"]

_PLAIN: Final[Mapping[str, Kind]] = {
    "string": "text",
    "number": "number",
    "integer": "integer",
    "boolean": "boolean",
}

_WORDS: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}

TEXT_SIZE: Final = 8192
"""Maximum characters of an answer: more than a line of a person, and a token or a path of any length."""


class Choice(NamedTuple):
    """One of the values that a field may have."""

    value: str
    name: str


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form."""

    name: str
    """Its member in the answer."""
    title: str
    hint: str
    """Its description; may be empty."""
    kind: Kind
    is_required: bool
    choices: tuple[Choice, ...]
    """The values to choose from; empty for the other kinds."""
    default: object
    """Its value to begin with, as in an answer; None without one."""
    schema: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The title, and whether it may be left empty."""
        return one_line(self.title) + ("" if self.is_required or self.kind == "boolean" else " (optional)")

    def read(self, text: str) -> object:
        """Return the value that a typed text stands for: a choice is its number, several have commas between them.

        None stands for a field that is left empty. Raises `ValueError` with what is wrong.
        """
        text = text.strip()
        if not text:
            return self.check(self.default)
        match self.kind:
            case "boolean":
                value: object = _WORDS.get(text.lower())
                if value is None:
                    raise ValueError("y or n")
            case "one":
                value = self._chosen(text)
            case "several":
                value = list(dict.fromkeys(self._chosen(part.strip()) for part in text.split(",") if part.strip()))
            case "number" | "integer":
                value = self._number(text)
            case "text":
                value = text
        return self.check(value)

    def check(self, value: object) -> object:
        """Return a value, if the field may have it. Raises `ValueError` with what is wrong."""
        if value is None or value in ("", []):
            if self.is_required:
                raise ValueError("this can't be left empty")
            return None
        if isinstance(value, str) and self.kind == "text":
            self._check_range(len(value), "minLength", "maxLength", " characters")
        elif isinstance(value, list):
            self._check_range(len(value), "minItems", "maxItems", " of them")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self._check_range(value, "minimum", "maximum", "")
        return value

    def _chosen(self, text: str) -> str:
        if text.isdecimal() and len(text) < 10 and 0 < int(text) <= len(self.choices):
            return self.choices[int(text) - 1].value
        named = [choice.value for choice in self.choices if text in choice]
        if not named:
            raise ValueError(f"a number from 1 to {len(self.choices)}")
        return named[0]

    def _number(self, text: str) -> int | float:
        try:
            return int(text)
        except ValueError:
            pass
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if self.kind == "integer" or not math.isfinite(value):
            raise ValueError("a whole number" if self.kind == "integer" else "a number")
        return value

    def _check_range(self, value: float, least: str, most: str, what: str) -> None:
        for name, word, fits in ((least, "at least", operator.ge), (most, "at most", operator.le)):
            limit = self.schema.get(name)
            if isinstance(limit, int | float) and not fits(value, limit):
                raise ValueError(f"{word} {limit}{what}")

    def lines(self) -> list[Line]:
        """Return the lines that ask for the field: its title, its description and its choices with their numbers."""
        lines: list[Line] = [[Span(f"  {self.label}", Style.QUESTION)]]
        if self.hint:
            lines.append([Span(f"    {one_line(self.hint)}", Style.DIM)])
        for number, choice in enumerate(self.choices, 1):
            lines.append([Span(f"    {number} {one_line(choice.name)}")])
        return lines

    def caption(self) -> str:
        """Return what stands before the typed text: how to answer, and what an empty line means."""
        how = {"one": "number", "several": "numbers, with commas", "boolean": "y/n"}.get(self.kind, "")
        numbers = {choice.value: str(number) for number, choice in enumerate(self.choices, 1)}
        default = self.default if isinstance(self.default, list) else [] if self.default is None else [self.default]
        words = ["ny"[one] if isinstance(one, bool) else numbers.get(str(one), str(one)) for one in default]
        shown = one_line(",".join(words))
        told = ", ".join(filter(None, (how, shown and f"Enter: {shown}")))
        return f"  {f'({told}) ' if told else ''}> "


def read_form(schema: object) -> tuple[Field, ...] | None:
    """Return the fields of a form in their order; None if a terminal can't fill in one of them, or it is not a form."""
    if not isinstance(schema, dict):
        return None
    form = members_of(schema)
    required = set(filter(None, map(text_of, list_of(form.get("required")))))
    fields = [
        _read_field(name, members_of(field), is_required=name in required)
        for name, field in members_of(form.get("properties")).items()
    ]
    known = tuple(field for field in fields if field is not None)
    return known if len(known) == len(fields) and required <= {field.name for field in known} else None


def _read_field(name: str, schema: Mapping[str, Any], *, is_required: bool) -> Field | None:
    kind = _PLAIN.get(text_of(schema.get("type")))
    choices = _read_choices(schema)
    if schema.get("type") == "array":
        kind, choices = "several", _read_choices(members_of(schema.get("items")))
    elif kind == "text" and choices:
        kind = "one"
    if kind is None or (kind == "several" and not choices):
        return None
    title, hint = text_of(schema.get("title")) or name, text_of(schema.get("description"))
    default = _read_default(schema.get("default"), kind, choices)
    return Field(name, title, hint, kind, is_required, choices, default, schema)


def _read_choices(schema: Mapping[str, Any]) -> tuple[Choice, ...]:
    titled = [members_of(one) for one in list_of(schema.get("oneOf")) or list_of(schema.get("anyOf"))]
    if titled:
        found = [(text_of(one.get("const")), text_of(one.get("title"))) for one in titled]
    else:
        names = [*map(text_of, list_of(schema.get("enumNames")))]
        values = [*map(text_of, list_of(schema.get("enum")))]
        found = [(value, names[at] if at < len(names) else "") for at, value in enumerate(values)]
    return tuple(Choice(value, name or value) for value, name in found if value)


def _read_default(value: object, kind: Kind, choices: Sequence[Choice]) -> object:
    """Return a default of the field's type; None for any other."""
    values = {choice.value for choice in choices}
    text = text_of(value)
    match kind:
        case "boolean":
            return value if isinstance(value, bool) else None
        case "number" | "integer":
            fits = isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)
            return value if fits and (isinstance(value, int) or math.isfinite(cast("float", value))) else None
        case "several":
            return [one for one in map(text_of, list_of(value)) if one in values]
        case "one":
            return text if text in values else None
        case "text":
            return text or None


class Filling:
    """Fills in a form by lines of text, a field at a time.

    Args:
        fields: the fields.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self._left = [*fields]
        self.content: dict[str, object] = {}
        """The answer so far; a field that was left empty is not in it."""

    @property
    def field(self) -> Field | None:
        """The field that is asked for; None after the last one."""
        return self._left[0] if self._left else None

    def enter(self, text: str) -> None:
        """Take the text of the present field. Raises `ValueError` with what is wrong, and keeps the field."""
        value = self._left[0].read(text)
        field = self._left.pop(0)
        if value is not None:
            self.content[field.name] = value
