import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.config.editing.toml_file import TomlFile, suggestion
from acp_gateway.errors import ConfigError

EVERYTHING = r'''# first line
top = 1
"quoted \"key" = 2
'literal.key' = 3
dotted . "two words".c = 4

[table]   # a comment ] with a bracket
text = "a # b = [c" # comment
literal = 'C:\path\'
long = """
key = "not a key" \"""
[not.a.table]
"""""
long_literal = """a\
  b"""
raw = \'\'\'
other = 1\'\'\'\'
after = 1979-05-27 07:32:00 # with a space
array = [ # opens
  1, "two]", # comment ]
  [3, 4],
  { inner = 5, deeper.still = [
      6 ] },
]
empty = []
nothing = {}
inline = { a = 1, b = { c = "}" } }

[[things]]
name = "first"
[things.sub]
x = 1
[[things.more]]
y = 1
[[things.more]]
y = 2

[[things]]
name = "second"
[things.sub]
x = 2

[a.b.c]
[a]
'''.replace("\\'", "'")


def read(tmp_path: Path, source: str | bytes) -> TomlFile:
    path = tmp_path / "file.toml"
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    return TomlFile.read(path)


def key_paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from key_paths(item, (*path, key))


def line_with(text: str) -> int:
    assert EVERYTHING.count(text) == 1, text
    return EVERYTHING[: EVERYTHING.index(text)].count("\n") + 1


def test_a_file_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, "[a]\nb = 1").data == {"a": {"b": 1}}


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    file = read(tmp_path, b"\xef\xbb\xbfa = 1\r\n[b]\r\nc = 2\r\n")
    assert file.data == {"a": 1, "b": {"c": 2}}
    assert file.line_of(("b", "c")) == 3


def test_a_file_that_is_missing_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        TomlFile.read(tmp_path / "none.toml")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        TomlFile.read(tmp_path)


def test_a_file_that_is_not_utf_8_is_an_error_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"file\.toml:2: is not UTF-8"):
        read(tmp_path, b"a = 1\nb = '\xff'\n")


@pytest.mark.parametrize(
    ("source", "line"),
    [("a = 1\nb = \n", 2), ("a = 1\na = 2\n", 2), ("[a\n", 1), ('a = 1\nb = "', 2), ("a = 1\n\nb = [1,", 3)],
)
def test_a_syntax_error_has_its_line(source: str, line: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not valid TOML") as caught:
        read(tmp_path, source)
    assert caught.value.line == line


@pytest.mark.parametrize(
    "line", ["b = \u201cx\u201d", "b = [\u201ex\u201c, 'y']", "\u2018b\u2019 = 1", "b = \u00abx\u00bb # why"]
)
def test_typographic_quotes_are_named_with_their_line(line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='is not valid TOML: there are typographic quotes in this line; use plain "'):
        read(tmp_path, f"a = 1\n{line}\n")


def test_typographic_quotes_in_a_string_or_a_comment_are_not_blamed(tmp_path: Path) -> None:
    assert read(tmp_path, "a = '\u201cx\u201d' # \u201cy\u201d").data == {"a": "\u201cx\u201d"}
    with pytest.raises(ConfigError, match="Invalid value"):
        read(tmp_path, "a = ['\u201cx\u201d', ?] # \u201cy\u201d")


@pytest.mark.parametrize(
    ("source", "table"),
    [
        ("[a]\nx = 1\n[a]\n", "[a]"),
        ("[hosts.box]\n[hosts.box]\n", "[hosts.box]"),
        ('[a."b c"]\n[a."b c"]', '[a."b c"]'),
    ],
)
def test_a_table_that_stands_twice_is_named(source: str, table: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, source)
    assert caught.value.message == f"{table} stands here for the second time"
    assert caught.value.line == source.rstrip().count("\n") + 1


def test_a_key_that_stands_twice_is_an_error_in_the_line_of_the_second(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r":2: is not valid TOML: this key has a value already, from a line above"):
        read(tmp_path, "a = 1\na = 2\n")


@pytest.mark.parametrize("source", ["a = " + "[" * 100_000, "a = " + "9" * 5000])
def test_what_python_cannot_hold_is_an_error_too(source: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read(tmp_path, source)


def test_every_key_of_a_document_has_a_line(tmp_path: Path) -> None:
    file = read(tmp_path, EVERYTHING)
    paths = list(key_paths(file.data))
    assert len(paths) > 40
    assert [path for path in paths if file.line_of(path) is None] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (["top"], "top ="),
        (['quoted "key'], '"quoted'),
        (["literal.key"], "'literal.key'"),
        (["dotted", "two words", "c"], "dotted ."),
        (["table"], "[table]"),
        (["table", "long_literal"], "long_literal ="),
        (["table", "raw"], "raw ="),
        (["table", "after"], "after ="),
        (["table", "array", 1], '"two]"'),
        (["table", "array", 2, 1], "[3, 4]"),
        (["table", "array", 3, "inner"], "inner ="),
        (["table", "array", 3, "deeper", "still", 0], "6 ]"),
        (["table", "inline", "b", "c"], "inline ="),
        (["things", 0, "name"], '"first"'),
        (["things", 0, "more", 1, "y"], "y = 2"),
        (["things", 1, "name"], '"second"'),
        (["things", 1, "sub", "x"], "x = 2"),
        (["a"], "[a]\n"),
    ],
)
def test_the_line_of_a_key_is_where_it_is_written(path: list[str | int], text: str, tmp_path: Path) -> None:
    assert read(tmp_path, EVERYTHING).line_of(path) == line_with(text)


def test_a_key_that_is_not_there_has_no_line(tmp_path: Path) -> None:
    file = read(tmp_path, EVERYTHING)
    assert file.line_of(["table", "other"]) is None
    assert file.line_of(["things", 2]) is None


def test_an_error_names_file_line_and_key(tmp_path: Path) -> None:
    file = read(tmp_path, '[[listen]]\nurl = 1\n[agents."my agent"]\nx = 1\n')
    assert str(file.error(["listen", 0, "url"], "wrong")) == f"{file.path}:2: listen[0].url: wrong"
    assert str(file.error(["agents", "my agent", "x"], "wrong")) == f'{file.path}:4: agents."my agent".x: wrong'


def test_an_error_about_a_missing_key_has_the_line_of_its_section(tmp_path: Path) -> None:
    file = read(tmp_path, "[a]\n[[listen]]\n[[listen]]\n")
    assert str(file.error(["listen", 1, "url"], "missing")) == f"{file.path}:3: listen[1].url: missing"
    assert str(file.error(["b"], "missing")) == f"{file.path}: b: missing"
    assert str(file.error([], "empty")) == f"{file.path}: empty"


def test_what_is_in_a_file_does_not_show_in_its_repr(tmp_path: Path) -> None:
    assert "hidden" not in repr(read(tmp_path, 'secret = "hidden"'))


def test_the_directory_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.toml").write_text("")
    assert TomlFile.read(Path("file.toml")).directory == tmp_path


def test_a_suggestion_is_the_candidate_that_looks_alike() -> None:
    assert suggestion("comand", ["cwd", "command", "env"]) == '; did you mean "command"?'
    assert suggestion("max-message-size", ["max_message_size"]) == '; did you mean "max_message_size"?'


def test_a_suggestion_may_differ_in_case_alone() -> None:
    assert suggestion("BOX", ["box"]) == '; did you mean "box"?'
    assert suggestion("gpu", ["GPU", "cpu"]) == '; did you mean "GPU"?'


def test_there_is_no_suggestion_where_nothing_looks_alike() -> None:
    assert suggestion("zebra", ["cwd", "command"]) == ""


KEYS = st.text("ab'\"\\.=[]{}#, \nä", max_size=4)
LEAVES = st.sampled_from(
    ["1", "-1.5e3", "true", "1979-05-27 07:32:00", "''", "'}'", "'a\"#'", '"]\\""', "'''\n,'''", '"""\n"\\""""']
)


def spell_key(key: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}
    return '"' + "".join(escapes.get(letter, letter) for letter in key) + '"'


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["leaf", "array", "table"] if depth else ["leaf"]))
    if kind == "leaf":
        return draw(LEAVES)
    if kind == "array":
        blank = draw(st.sampled_from(["", " ", "\n", " # ]\n"]))
        return "[" + blank + ("," + blank).join(draw(st.lists(values(depth - 1), max_size=3))) + blank + "]"
    keys = draw(st.lists(KEYS, unique=True, max_size=3))
    return "{ " + ", ".join(f"{spell_key(key)} = {draw(values(depth - 1))}" for key in keys) + " }"


@given(st.lists(st.tuples(st.sampled_from(["", "[x{}]\n", "[[y]]\n", "[z.x{}]\n"]), values()), max_size=5))
def test_no_valid_document_confuses_the_search_for_lines(parts: list[tuple[str, str]]) -> None:
    source = "".join(header.format(number) + f"key{number} = {value}\n" for number, (header, value) in enumerate(parts))
    file = TomlFile(Path("file.toml"), tomllib.loads(source), source)
    assert [path for path in key_paths(file.data) if file.line_of(path) is None] == []
    for number in range(len(parts)):
        lines = source[: source.index(f"key{number} =")].count("\n") + 1
        assert lines in [file.line_of(path) for path in key_paths(file.data) if path[-1] == f"key{number}"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("url = wss://0.0.0.0:7443", 'a text stands in quotes: url = "…"'),
        ("  root=~/proj  # here", 'a text stands in quotes: root = "…"'),
        ("listen:", "looks like YAML"),
        ("  - url: wss://box", "looks like YAML"),
        ("url = [wss://box]", "is not valid TOML: Invalid value"),
    ],
)
def test_the_likeliest_mistake_in_a_line_that_is_not_toml_is_told(tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "config.toml").write_text(f"[gateway]\n{line}\n")
    with pytest.raises(ConfigError) as error:
        TomlFile.read(tmp_path / "config.toml")
    assert told in str(error.value)
    assert error.value.line == 2
    assert "wss" not in str(error.value)


def test_a_file_of_another_user_names_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The mode of a file does not keep root out.
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(Path, "owner", lambda path: path.name)
    for path, owner in ((tmp_path, tmp_path.name), (tmp_path / "absent/config.toml", tmp_path.name)):
        with pytest.raises(ConfigError) as error:
            TomlFile.read(path)
        assert str(error.value) == f"{path}: cannot be read: Permission denied; it is {owner}'s: run this as that user"
