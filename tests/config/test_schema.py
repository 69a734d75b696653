import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from acp_gateway.config import schema
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.schema import Entry, missing_credential, parse_duration, read_section
from acp_gateway.errors import ConfigError, UsageError

SECONDS = 'a number of seconds above 0, or a duration such as "90s" or "24h"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    name: schema.Name
    flag: schema.Flag = False
    wait: schema.Seconds = 1.5
    limit: schema.SecondsOrNever = 2.5
    count: schema.Count = 5
    size: schema.Size = 10
    text: schema.Text | None = None
    texts: schema.Texts = ()
    table: schema.StringsByName = field(default_factory=dict)
    path: schema.FilePath | None = None
    absolute: schema.AbsolutePath | None = None


def entry(tmp_path: Path, source: str) -> Entry:
    path = tmp_path / "file.toml"
    path.write_text(source)
    file = TomlFile.read(path)
    return Entry(file, (), file.data).child("sample", {})


def read(tmp_path: Path, source: str) -> Sample:
    problems: list[ConfigError] = []
    section = read_section(Sample, entry(tmp_path, f'[sample]\nname = "x"\n{source}\n'), problems)
    assert problems == []
    assert section is not None
    return section


def problems_of(tmp_path: Path, source: str) -> list[str]:
    problems: list[ConfigError] = []
    assert read_section(Sample, entry(tmp_path, source), problems) is None
    return [str(problem).removeprefix(str(tmp_path / "file.toml")) for problem in problems]


def test_what_is_not_set_has_its_default(tmp_path: Path) -> None:
    assert read(tmp_path, "") == Sample(name="x")


def test_values_arrive_with_their_types(tmp_path: Path) -> None:
    section = read(
        tmp_path,
        "flag = true\nwait = 2\nlimit = 9\ncount = 4\nsize = 3\n"
        'text = "t"\ntexts = ["a", "b"]\ntable = { K = "v", L = "" }',
    )
    assert section == Sample(
        name="x", flag=True, wait=2.0, limit=9.0, count=4, size=3, text="t", texts=("a", "b"), table={"K": "v", "L": ""}
    )
    assert type(section.wait) is float
    assert type(section.limit) is float


def test_never_is_a_time_without_end_where_it_is_allowed(tmp_path: Path) -> None:
    assert read(tmp_path, 'limit = "never"').limit == math.inf
    (found,) = problems_of(tmp_path, '[sample]\nname = "x"\nwait = "never"')
    assert found == f':3: sample.wait: expected {SECONDS}, found "never"'


@pytest.mark.parametrize(
    ("text", "seconds"), [('"90s"', 90.0), ('"15m"', 900.0), ('"24h"', 86400.0), ('"7d"', 604800.0), ("90", 90.0)]
)
def test_a_time_is_a_number_of_seconds_or_a_duration_as_on_the_command_line(
    text: str, seconds: float, tmp_path: Path
) -> None:
    section = read(tmp_path, f"wait = {text}\nlimit = {text}")
    assert section.wait == section.limit == seconds
    assert type(section.wait) is float


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('size = "1GB"', "size: expected a whole number of bytes, without quotes and unit: 1 GiB is 1073741824"),
        ("flag = 1", "flag: expected true or false, found a whole number"),
        ('wait = "10"', 'wait: expected SECONDS, found "10"'),
        ('wait = "1.5h"', 'wait: expected SECONDS, found "1.5h"'),
        ('wait = "xxxxxxxxxxxxxxxxxxxxxxxxx"', "wait: expected SECONDS, found a string"),
        ('wait = "0s"', "wait: a duration has to be longer than nothing"),
        ('wait = "4000d"', "wait: a duration is at most ten years"),
        ("wait = true", "wait: expected SECONDS, found a boolean"),
        ("wait = 0", "wait: expected SECONDS, found 0"),
        ("wait = -1.5", "wait: expected SECONDS, found -1.5"),
        ("wait = inf", "wait: expected SECONDS, found inf"),
        ("wait = nan", "wait: expected SECONDS, found nan"),
        ("wait = 1" + "0" * 400, "wait: expected SECONDS, found 1" + "0" * 400),
        ('limit = "Never"', 'limit: expected SECONDS, or "never", found "Never"'),
        ("limit = true", 'limit: expected SECONDS, or "never", found a boolean'),
        ("limit = 0", 'limit: expected SECONDS, or "never", found 0'),
        ("limit = inf", 'limit: expected SECONDS, or "never", found inf'),
        ("count = 1.0", "count: expected a whole number above 0, found 1.0"),
        ("count = true", "count: expected a whole number above 0, found a boolean"),
        ("count = 0", "count: expected a whole number above 0, found 0"),
        ("size = 1.5", "size: expected a whole number of bytes above 0, found 1.5"),
        ("size = false", "size: expected a whole number of bytes above 0, found a boolean"),
        ("size = 0", "size: expected a whole number of bytes above 0, found 0"),
        ("size = 9223372036854775808", "size: expected a whole number of bytes above 0, found 9223372036854775808"),
        ("text = 1979-05-27", "text: expected a string, found a date or time"),
        ('text = ""', "text: expected a string that is not empty"),
        ('text = "a\\u0000b"', "text: a string cannot hold a NUL character here"),
        ('texts = "a"', "texts: expected an array of strings, found a string"),
        ('texts = ["a", 1]', "texts[1]: expected a string, found a whole number"),
        ("table = []", "table: expected a table, such as { NAME"),
        ("table = { KEY = 5 }", "table.KEY: expected a string, found a whole number"),
        ("path = {}", "path: expected a string, found a table"),
        ('path = "~missing-user/x"', 'path: no home directory is known for "~missing-user/x"'),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_with_what_was_expected_and_found(
    source: str, problem: str, tmp_path: Path
) -> None:
    (found,) = problems_of(tmp_path, f'[sample]\nname = "x"\n{source}')
    assert found.startswith(f":3: sample.{problem.replace('SECONDS', SECONDS)}")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a:1", "x" * 65, "a\\n"])
def test_a_name_is_short_and_plain(name: str, tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, f'[sample]\nname = "{name}"')
    assert found == ":2: sample.name: a name is 1 to 64 letters, digits, dots, dashes and underscores"


def test_all_problems_of_a_section_are_found_at_once(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "[sample]\nsizes = 1\nzebra = 1\nflag = 1\nwait = 0") == [
        ':2: sample.sizes: unknown option; did you mean "size"?',
        (
            ":3: sample.zebra: unknown option; known here: "
            "name, flag, wait, limit, count, size, text, texts, table, path, absolute"
        ),
        ":1: sample.name: this option is required",
        ":4: sample.flag: expected true or false, found a whole number",
        f":5: sample.wait: expected {SECONDS}, found 0",
    ]


def test_a_section_that_is_not_a_table_is_an_error(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "sample = 1") == [":1: sample: expected a table, found a whole number"]


def test_a_relative_path_starts_at_the_folder_of_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, 'path = "sub/file"').path == tmp_path / "sub/file"
    assert read(tmp_path, 'path = "/sub/file"').path == Path("/sub/file")


def test_a_tilde_in_a_path_is_expanded_to_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    section = read(tmp_path, 'path = "~/file"\nabsolute = "~/folder"')
    assert (section.path, section.absolute) == (Path("/home/ann/file"), Path("/home/ann/folder"))


def test_a_credential_is_a_file_that_systemd_hands_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/x.service")
    path = read(tmp_path, 'path = "credential:key.pem"').path
    assert path == Path("/run/credentials/x.service/key.pem")
    assert missing_credential(path) is None


@pytest.mark.parametrize("directory", [None, "", "relative"])
def test_without_a_directory_of_credentials_a_file_can_be_read_and_what_is_missing_is_said(
    directory: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    if directory is not None:
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", directory)
    path = read(tmp_path, 'path = "credential:key.pem"').path
    assert path is not None
    assert missing_credential(path) == (
        'there is no "credential:key.pem" here, because systemd has handed over no credentials (CREDENTIALS_DIRECTORY '
        "is not set): the unit needs LoadCredential=key.pem:FILE"
    )


def test_a_path_of_another_kind_is_not_a_missing_credential(tmp_path: Path) -> None:
    path = read(tmp_path, 'path = "sub/credential:x"').path
    assert path == tmp_path / "sub/credential:x"
    assert missing_credential(path) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "/etc/passwd", "x" * 256])
def test_the_name_of_a_credential_leads_nowhere_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (found,) = problems_of(tmp_path, f'[sample]\nname = "x"\npath = "credential:{name}"')
    assert found == (
        ':3: sample.path: expected "credential:" and the name of one, without a slash, as LoadCredential= has it'
    )


def test_where_an_absolute_path_is_demanded_the_error_shows_one(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, '[sample]\nname = "x"\nabsolute = "sub"')
    assert found == f':3: sample.absolute: expected an absolute path, found "sub"; "{tmp_path / "sub"}" would be one'


def test_a_wrong_value_does_not_show_in_errors_or_reprs(tmp_path: Path) -> None:
    source = '[sample]\nname = "x"\nflag = "hidden"\ntable = { K = 4711 }\ntexts = "hidden"\nsize = "hidden"'
    text = " ".join(problems_of(tmp_path, source)) + repr(entry(tmp_path, source))
    assert "hidden" not in text
    assert "4711" not in text


def test_an_option_whose_type_says_not_how_to_read_it_is_a_bug_that_shows_at_once(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Wrong:
        name: str

    with pytest.raises(TypeError, match="names no function that reads it"):
        read_section(Wrong, entry(tmp_path, '[sample]\nname = "x"'), [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    DERIVED: ClassVar[Mapping[str, schema.Derived]] = {
        "half": schema.Derived("whole", 1 / 2),
        "part": schema.Derived("whole", 1 / 4, least="least", most=9),
    }

    whole: schema.Count = 16
    least: schema.Count = 3
    half: schema.Fixed[schema.Count] = 8
    part: schema.Fixed[schema.Count] = 4
    wait: schema.Fixed[schema.Seconds] = 60.0
    on: schema.Fixed[schema.Flag] = False
    size: schema.Fixed[schema.Size] = 2048


def read_limited(tmp_path: Path, source: str) -> tuple[Limited | None, list[str], list[str]]:
    problems: list[ConfigError] = []
    at = entry(tmp_path, f"[sample]\n{source}\n")
    section = read_section(Limited, at, problems)
    return section, [str(problem) for problem in problems], [error.message for error in at.file.removed]


def test_a_constant_in_a_file_is_told_with_its_value_and_changes_nothing(tmp_path: Path) -> None:
    section, problems, told = read_limited(tmp_path, "wait = 1\non = 'x'\nsize = 0\nhalf = 1\npart = 1")
    assert (section, problems) == (Limited(), [])
    assert told == [
        f"this is not an option any more: it is always {value}; remove the line"
        for value in ("60 s", "false", "2 KiB", "1/2 of whole", "1/4 of whole, at most 9 bytes, but at least least")
    ]


@pytest.mark.parametrize(
    ("source", "half", "part"),
    [("", 8, 4), ("whole = 4", 2, 3), ("whole = 1", 1, 3), ("whole = 100", 50, 9), ("least = 10", 8, 10)],
)
def test_a_derived_limit_follows_its_option_within_bounds(source: str, half: int, part: int, tmp_path: Path) -> None:
    section, _, _ = read_limited(tmp_path, source)
    assert section is not None
    assert (section.half, section.part) == (half, part)


def test_a_derived_limit_that_code_sets_is_used_as_it_is() -> None:
    assert Limited(whole=2, half=7).half == 7


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1.0), ("90s", 90.0), ("15m", 900.0), ("2h", 7200.0), ("7d", 604800.0), ("007s", 7.0)]
)
def test_a_number_and_a_unit_are_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert type(parse_duration(text)) is float


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "10",
        "1.5h",
        "-1s",
        "+1s",
        "1 s",
        " 1s",
        "1s ",
        "1s\n",
        "1H",
        "1w",
        "1h30m",
        "1e3s",
        "never",
        "٣s",
        "²s",
    ],
)
def test_what_is_not_a_duration_is_refused_with_examples_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert str(caught.value) == "expected a whole number and s, m, h or d behind it, such as 90s, 15m, 2h or 7d"


@pytest.mark.parametrize("text", ["0s", "0d", "000m"])
def test_no_time_at_all_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="longer than nothing"):
        parse_duration(text)


def test_ten_years_are_the_longest() -> None:
    assert parse_duration("3650d") == parse_duration("315360000s") == 315360000.0


@pytest.mark.parametrize("text", ["3651d", "87601h", "5256001m", "315360001s", "9" * 5000 + "s"])
def test_more_than_ten_years_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="at most ten years, 3650d"):
        parse_duration(text)
