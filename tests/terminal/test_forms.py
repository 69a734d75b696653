"""Forms of the agent: their fields, and what is typed for them."""

from typing import Any

import pytest

from acp_gateway.terminal.forms import Choice, Field, Filling, read_form
from tests.kit.updates import HOSTILE, plain_text

COLOURS = {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]}
SEVERAL = {"type": "array", "items": {"type": "string", "enum": ["unit", "web"]}, "maxItems": 1}


def fields(*required: str, **properties: Any) -> tuple[Field, ...]:
    found = read_form({"type": "object", "properties": properties, "required": [*required]})
    assert found is not None
    return found


def field(*required: str, **schema: Any) -> Field:
    (found,) = fields(*required, it=schema)
    return found


def test_fields_have_their_order_title_hint_and_kind() -> None:
    read = fields(
        "name",
        name={"type": "string", "title": "Your name", "description": "As in git"},
        age={"type": "integer"},
        share={"type": "number"},
        ok={"type": "boolean"},
        colour=COLOURS,
        tests=SEVERAL,
    )
    assert [(one.name, one.kind, one.is_required) for one in read] == [
        ("name", "text", True),
        ("age", "integer", False),
        ("share", "number", False),
        ("ok", "boolean", False),
        ("colour", "one", False),
        ("tests", "several", False),
    ]
    assert (read[0].label, read[0].hint, read[1].label, read[3].label) == (
        "Your name",
        "As in git",
        "age (optional)",
        "ok",
    )
    assert read[4].choices == (Choice("r", "Red"), Choice("g", "Green"))
    assert read[5].choices == (Choice("unit", "unit"), Choice("web", "web"))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"it": {"type": "object"}}},
        {"properties": {"it": {}}},
        {"properties": {"it": {"type": "array", "items": {"type": "string"}}}},
        {"properties": {"it": 5}},
        {"properties": {}, "required": ["it"]},
        None,
        5,
    ],
)
def test_a_form_with_an_unknown_field_is_not_filled_in(schema: object) -> None:
    assert read_form(schema) is None


@pytest.mark.parametrize("schema", [{}, {"properties": []}])
def test_a_form_without_fields_has_none(schema: object) -> None:
    assert read_form(schema) == ()


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "  ann ", "ann"),
        ({"type": "string", "enum": ["a", "b"], "enumNames": ["First"]}, "2", "b"),
        ({"type": "string", "enum": ["a", "b"], "enumNames": ["First"]}, "First", "a"),
        (COLOURS, "g", "g"),
        (SEVERAL, "2", ["web"]),
        ({**SEVERAL, "maxItems": 2}, "2, 1,2,", ["web", "unit"]),
        ({"type": "integer"}, "-3", -3),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, "2", 2),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "n", False),
        ({"type": "string"}, "", None),
        ({"type": "string", "default": "x"}, "", "x"),
        ({"type": "boolean", "default": False}, "", False),
        ({"type": "integer", "default": 0}, "", 0),
        ({**SEVERAL, "default": ["web", "other"]}, "", ["web"]),
    ],
)
def test_what_is_typed_has_the_type_of_the_field(schema: dict[str, Any], text: str, value: object) -> None:
    read = field(**schema).read(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("schema", "text", "wrong"),
    [
        (COLOURS, "3", "a number from 1 to 2"),
        (COLOURS, "0", "a number from 1 to 2"),
        (SEVERAL, "1,2", "at most 1 of them"),
        ({"type": "integer"}, "1.5", "a whole number"),
        ({"type": "number"}, "nan", "a number"),
        ({"type": "number"}, "1e999", "a number"),
        ({"type": "integer", "maximum": 2}, "9" * 400, "at most 2"),
        ({"type": "integer", "minimum": 10**400}, "3", f"at least {10**400}"),
        (COLOURS, "9" * 5000, "a number from 1 to 2"),
        ({"type": "number", "minimum": 2}, "1", "at least 2"),
        ({"type": "integer", "maximum": 2}, "3", "at most 2"),
        ({"type": "string", "minLength": 2}, "x", "at least 2 characters"),
        ({"type": "boolean"}, "maybe", "y or n"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(schema: dict[str, Any], text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=f"^{wrong}$"):
        field(**schema).read(text)


@pytest.mark.parametrize("kind", ["string", "integer", "boolean"])
def test_a_required_field_can_not_be_left_empty(kind: str) -> None:
    with pytest.raises(ValueError, match="left empty"):
        field("it", type=kind).read(" ")


@pytest.mark.parametrize(
    "default",
    [
        {"type": "string", "default": 5},
        {"type": "integer", "default": True},
        {**COLOURS, "default": "x"},
        {**COLOURS, "default": {}},
    ],
)
def test_a_default_of_another_type_is_ignored(default: dict[str, Any]) -> None:
    assert field(**default).default is None


def test_defaults_of_any_kind_and_size_are_read() -> None:
    assert field(**SEVERAL, default=[["web"], {}, "web"]).default == ["web"]
    assert field(type="integer", default=10**400).read("") == 10**400
    assert field(type="number", default=10**400).read("") == 10**400


def test_a_field_is_asked_for_with_its_choices_and_its_default() -> None:
    colour = field(**COLOURS, title="Colour", description="Of the box", default="g")
    assert plain_text(colour.lines()) == "  Colour (optional)\n    Of the box\n    1 Red\n    2 Green\n"
    assert colour.caption() == "  (number, Enter: 2) > "
    assert field(type="boolean", default=False).caption() == "  (y/n, Enter: n) > "
    assert field(type="string").caption() == "  > "


def test_a_form_is_filled_in_field_by_field_and_empty_ones_are_left_out() -> None:
    filling = Filling(fields("age", age={"type": "integer"}, nick={"type": "string"}, ok={"type": "boolean"}))
    with pytest.raises(ValueError, match="a whole number"):
        filling.enter("x")
    assert filling.field is not None
    assert filling.field.name == "age"
    for text in ("7", "", "y"):
        assert filling.field is not None
        filling.enter(text)
    assert filling.field is None
    assert filling.content == {"age": 7, "ok": True}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_fields_stay_in_their_lines(text: str) -> None:
    schema = {"type": "string", "title": text, "description": text, "default": text, "enum": [text, "x"]}
    read = read_form({"properties": {text: schema}})
    assert read is not None
    lines = plain_text(read[0].lines())
    assert all(line.isprintable() for line in [*lines.split("\n"), read[0].caption()])
    assert lines.count("\n") <= 4
