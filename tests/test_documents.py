"""The documents: links lead to files and headings that exist, and modules are named as they are called."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "acp_gateway"

DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "systemd/README.md", ROOT / "certs/README.md"]
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
def test_modules_and_tests_that_a_document_names_exist(document: Path) -> None:
    packages = "|".join(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    text = document.read_text(encoding="utf-8")
    modules = set(re.findall(rf"(?<![\w/])(?:acp_gateway/)?((?:{packages})/[\w/]+\.py)\b", text))
    assert {module for module in modules if not (PACKAGE / module).is_file()} == set()
    tests = set(re.findall(r"(?<![\w/])tests/[\w/]+(?:\.py)?", text))
    assert {name for name in tests if not (ROOT / name).exists()} == set()


def test_the_architecture_describes_each_package_once() -> None:
    described = re.findall(r"^\| `(\w+)/` \| ", ARCHITECTURE, re.MULTILINE)
    assert sorted(described) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def test_the_picture_of_the_packages_shows_each_of_them() -> None:
    picture = ARCHITECTURE.partition("```mermaid\nflowchart")[2].partition("```")[0]
    shown = set(re.findall(r"[a-z]+", picture))
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= shown


ROWS = [
    (path, cells)
    for path in (ROOT / "docs" / "options.md", ROOT / "docs" / "log.md")
    for line in path.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `") and len(cells := line.strip("| ").split(" | ")) > 1
]
"""Rows of tables of options and of log lines."""


def test_each_row_of_a_table_of_options_or_log_lines_can_be_read_alone() -> None:
    assert len(ROWS) > 200
    dangling = re.compile(
        r"the same\.|the same[,;] |likewise|as above|ditto|see above|of it\b|that |(?:\w+ )?which |between ",
        re.IGNORECASE,
    )
    assert [cells for _, cells in ROWS if dangling.match(cells[-1]) or "likewise" in cells[-1]] == []
