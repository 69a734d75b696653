"""The documents: links lead to files and headings that exist, and modules are named as they are called."""

import re
import runpy
from pathlib import Path

import pytest

from tools.make_reference import escape, logged_lines

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "acp_gateway"

DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "systemd/README.md", ROOT / "certs/README.md"]
)

ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def prose(document: Path) -> str:
    """Return the text of a document without its blocks of code."""
    return re.sub(r"^( *)```.*?^\1```$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(document: Path) -> set[str]:
    """Return the anchors that a forge makes of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


ABOVE = [path.name for path in PACKAGE.glob("*.py")]
"""Modules of no folder: all others are named with theirs."""


def links(document: Path) -> list[tuple[str, str]]:
    """Return path and anchor of each relative link, either of them empty if it is absent."""
    return re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", prose(document))


@each_document
def test_relative_links_lead_to_files_and_headings(document: Path) -> None:
    broken = []
    for path, anchor in links(document):
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}")
    assert broken == []


def test_links_are_found_with_their_anchors(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(
        "# One two: `three.four`\n[a](b.md#c) [d](#e) [f](https://example.org/g.md)\n```\n[h](i)\n```\n"
    )
    assert links(document) == [("b.md", "c"), ("", "e")]
    assert anchors(document) == {"one-two-threefour"}


@each_document
def test_modules_packages_and_tests_that_a_document_names_exist(document: Path) -> None:
    packages = "|".join(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    text = document.read_text(encoding="utf-8")
    modules = set(re.findall(rf"(?<![\w/])(?:acp_gateway/)?((?:{packages})/[\w/]+(?:\.py\b|/(?=`)))", text))
    assert {module for module in modules if not (PACKAGE / module).exists()} == set()
    beside = set(re.findall(r"(?<![\w/])acp_conformance/[\w/]+(?:\.py)?", text))
    assert {name for name in beside if not (ROOT / name).exists()} == set()
    if document.name == "architecture.md":
        assert set(re.findall(r"`(\w+\.py)`", text)) - {"__init__.py", "requests.py", "output.py", *ABOVE} == set()
    tests = set(re.findall(r"(?<![\w/])tests/[\w/]+(?:\.py)?", text))
    assert {name for name in tests if not (ROOT / name).exists()} == set()


def section_of_the_architecture(name: str) -> str:
    """Return the text below a heading."""
    return ARCHITECTURE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def test_the_architecture_describes_each_package_once() -> None:
    described = re.findall(r"^\| `(\w+)/` \| ", section_of_the_architecture("Packages"), re.MULTILINE)
    assert sorted(described) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def test_what_may_be_deleted_is_imported_by_the_named_modules_alone() -> None:
    imports: dict[str, set[str]] = runpy.run_path(str(ROOT / "tools/structure"))["imports"]()
    rows = re.findall(
        r"^\| `(\w+)/` \| .* \| ?(.*) \|$", section_of_the_architecture("What may be deleted"), re.MULTILINE
    )
    assert len(rows) > 4
    for folder, named in rows:
        package = folder if folder == "acp_conformance" else f"acp_gateway.{folder}"
        importing = {
            module
            for module, names in imports.items()
            if not f"{module}.".startswith(f"{package}.")
            and any(f"{name}.".startswith(f"{package}.") for name in names)
        }
        paths = re.findall(r"`([\w/]+)\.py`", named)
        assert importing == {f"acp_gateway.{path.replace('/', '.')}" for path in paths}, folder


def test_the_picture_of_the_packages_shows_each_of_them() -> None:
    shown = set(re.findall(r"[a-z]+", ARCHITECTURE.partition("```mermaid\nflowchart")[2].partition("```")[0]))
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= shown


def test_the_readme_names_the_command_of_the_tests_beside_that_of_the_demo() -> None:
    paragraphs = (ROOT / "README.md").read_text(encoding="utf-8").split("\n\n")
    assert [text for text in paragraphs if "`make demo`" in text and "`make test`" in text]


def count_words(document: Path) -> int:
    """Return the number of words, with a letter or a digit."""
    return sum(any(map(str.isalnum, word)) for word in document.read_text(encoding="utf-8").split())


MOST_WORDS = 57_320
"""Words of all documents but the lists of `docs/reference/`, not read but looked up. Lowered with what goes."""


def test_what_a_person_reads_has_no_more_words_than_it_had() -> None:
    read = [document for document in DOCUMENTS if document.parent.name != "reference"]
    assert ROOT / "docs/options.md" in read
    assert sum(map(count_words, read)) <= MOST_WORDS


def rows(name: str) -> list[list[str]]:
    """Return the cells of each row of a document that begins with code."""
    lines = (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]


def test_each_row_of_a_table_of_options_or_log_lines_can_be_read_alone() -> None:
    cells = [*rows("options.md"), *rows("log.md")]
    assert len(cells) > 180
    dangling = re.compile(r"(the same\.|the same[,;] |likewise|as above|ditto|see above|of it\b)", re.IGNORECASE)
    assert [row for row in cells if len(row) > 1 and (dangling.match(row[-1]) or "likewise" in row[-1])] == []


def test_each_line_of_the_log_that_is_explained_is_written_with_this_level() -> None:
    text = (ROOT / "docs/log.md").read_text(encoding="utf-8")
    written = {(level, line) for _, level, line in logged_lines()}
    explained = {
        (level, line.strip())
        for level, part in re.findall(r"^## ([A-Z]+)\n(.*?)(?=^## )", text, re.DOTALL | re.MULTILINE)
        for row in re.findall(r"^\| (`.*?) \| ", part, re.MULTILINE)
        for _, line in re.findall(r"(`+)(.+?)\1(?!`)", row)
    }
    assert len(explained) > 25
    # A word in capitals stands for a value of a line that has no words of its own.
    sure = {(level, line) for level, line in explained if not re.search(r"\b[A-Z]{3,}\b", line)}
    assert {each for each in sure - written if ("", each[1]) not in written} == set()


@pytest.mark.parametrize(
    ("text", "written"), [("a_b *c* [D] `*e*`", r"a_b \*c\* \[D\] `*e*`"), ("_acp <f>", r"\_acp \<f\>")]
)
def test_a_help_has_no_markup_in_the_reference(text: str, written: str) -> None:
    assert escape(text) == written


def test_the_site_has_every_document() -> None:
    shown = re.findall(r"(?:- |: )(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")} <= set(shown)
