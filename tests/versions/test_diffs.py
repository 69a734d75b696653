"""Diffs of both versions, and Git patches of any quality."""

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acp_gateway.versions.diffs import NO_NEWLINE, PATCH_STEPS, git_patch, new_diff, old_diff, old_diff_of, read_patch
from acp_gateway.versions.parts import members
from tests.fuzz.effort import effort
from tests.kit.versions import content, dump, own

Json = Any

ODD_PATHS = ["/w/a", "/w/with space", '/w/"quoted"', "/w/back\\slash", "/w/é€", "/w/tab\tnew\nline\x01", "relative", ""]
texts = st.text("ab\n\r\\-+ @", max_size=12) | st.sampled_from(
    ["\\ No newline at end of file\n", "@@ -1 +1 @@\n", "diff --git a b\n"]
)


def new(path: str, old: str | None, after: str) -> Json:
    return json.loads(new_diff(members(dump({"path": path, "oldText": old, "newText": after, "_meta": {"k": 1}}))))


def old(diff: Json) -> list[Json]:
    return [json.loads(item) for item in old_diff(members(dump(diff)))]


@given(path=st.sampled_from(ODD_PATHS), before=st.none() | texts, after=texts)
@effort(300)
def test_a_diff_of_version_1_is_the_same_after_version_2(path: str, before: str | None, after: str) -> None:
    if before != after:
        found = old(new(path, before, after))
        assert found == [{"type": "diff", "path": path, "oldText": before, "newText": after}]


def lines_of(text: str) -> list[str]:
    """Return the lines of a text; a last one without a line break has another end."""
    lines = text.split("\n")
    return [*lines[:-1], f"{lines[-1]}\n{NO_NEWLINE}"] if lines[-1] else lines[:-1]


@given(before=texts, after=texts)
@effort(1000)
def test_a_patch_keeps_the_equal_lines_at_both_ends_and_no_others(before: str, after: str) -> None:
    if before == after:
        return
    old_lines, new_lines = lines_of(before), lines_of(after)
    start = 0
    while start < min(len(old_lines), len(new_lines)) and old_lines[start] == new_lines[start]:
        start += 1
    end = 0
    while end < min(len(old_lines), len(new_lines)) - start and old_lines[-1 - end] == new_lines[-1 - end]:
        end += 1
    body = [f" {line}" for line in old_lines[:start]]
    body += [f"-{line}" for line in old_lines[start : len(old_lines) - end]]
    body += [f"+{line}" for line in new_lines[start : len(new_lines) - end]]
    body += [f" {line}" for line in old_lines[len(old_lines) - end :]]
    head = f"@@ -{min(1, len(old_lines))},{len(old_lines)} +{min(1, len(new_lines))},{len(new_lines)} @@"
    assert git_patch("/w/a", before, after).split("\n")[3:] == [head, *"\n".join(body).split("\n"), ""]


def steps(work: Callable[[], object]) -> int:
    """Return the number of instructions of Python that some work takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(former)
    return count


def test_a_diff_takes_hardly_more_steps_for_a_thousand_times_as_many_lines() -> None:
    def both(lines: int) -> None:
        before = "a\n" * lines + "b\n" + "c\n" * lines
        diff = json.loads(new_diff({"path": b'"/w/a"', "oldText": dump(before), "newText": dump(before + "\nd")}))
        (item,) = old(diff)
        assert (item["oldText"], item["newText"]) == (before, before + "\nd")

    few = steps(lambda: both(10))
    assert 100 < few < steps(lambda: both(10_000)) < 2 * few


def test_a_patch_with_more_places_than_are_read_is_shown_as_it_is() -> None:
    section = "diff --git /a /a\n@@ -1 +1 @@\n-x\n+y\n"
    for patch in (section * PATCH_STEPS, "diff --git /a /a\n@@ -9999 +9999 @@\n" + "-x\n+y\n" * PATCH_STEPS):
        assert read_patch(patch) == []
        assert old({"changes": [], "patch": {"format": "git_patch", "text": patch}}) == [content(patch)]
    assert len(read_patch(section * (PATCH_STEPS // 4))) == PATCH_STEPS // 4


def test_a_path_that_no_file_can_have_is_not_quoted() -> None:
    path = "\x01" * 5000
    assert f"+++ {path}\n" in git_patch(path, "a", "b")


def test_a_diff_that_changes_nothing_has_no_patch() -> None:
    diff = new("/w/a", "x", "x")
    assert "patch" not in diff
    assert diff["_meta"] == {"k": 1}
    change = {"operation": "modify", "path": "/w/a", "fileType": "text"}
    assert old(diff) == [content("modified: /w/a", change=change)]


def test_a_patch_keeps_all_lines_and_trims_nothing() -> None:
    assert git_patch("/w/a", "a\nb\nc\n", "a\nx\nc\n") == (
        "diff --git /w/a /w/a\n--- /w/a\n+++ /w/a\n@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n"
    )


PATCH = r"""preface
diff --git /w/one /w/one
index 1..2 100644
--- /w/one
+++ /w/one
@@ -1,2 +1,2 @@ def f():
 a
-b
+c
@@ -9 +9 @@
-x
\ No newline at end of file
+y
\ No newline at end of file
diff --git /w/old /w/new
similarity index 90%
rename from /w/old
rename to /w/new
--- /w/old
+++ /w/new
@@ -1 +1 @@
-p
+q
diff --git /w/gone /w/gone
deleted file mode 100644
--- /w/gone
+++ /dev/null
@@ -1 +0,0 @@
-bye
diff --git /w/pic.png /w/pic.png
Binary files /w/pic.png and /w/pic.png differ
diff --git /w/empty /w/empty
new file mode 100644
diff --git a/w/git b/w/git
--- a/w/git
+++ b/w/git
@@ -1 +1 @@
-1
+2
diff --git /w/extra /w/extra
--- /w/extra
+++ /w/extra
@@ -1 +1 @@
-3
+4
diff --git /w/more /w/copy
copy from /w/more
copy to /w/copy
"""


def test_every_operation_is_a_diff_or_a_text() -> None:
    changes = [
        {"operation": "modify", "path": "/w/one"},
        {"operation": "move", "oldPath": "/w/old", "path": "/w/new"},
        {"operation": "delete", "path": "/w/gone"},
        {"operation": "modify", "path": "/w/pic.png", "fileType": "binary"},
        {"operation": "add", "path": "/w/empty"},
        {"operation": "modify", "path": "/w/git"},
        {"operation": "copy", "oldPath": "/w/more", "path": "/w/copy", "fileType": "text"},
        {"operation": "_chmod", "path": "/w/run"},
        {"operation": "add", "path": "/w/dir", "fileType": "directory"},
        {"operation": "modify", "path": "/w/silent"},
    ]
    assert old({"changes": changes, "patch": {"format": "git_patch", "text": PATCH}}) == [
        {"type": "diff", "path": "/w/one", "oldText": "a\nb\n@@ -9 +9 @@\nx", "newText": "a\nc\n@@ -9 +9 @@\ny"},
        content("moved: /w/old → /w/new", change=changes[1]),
        {"type": "diff", "path": "/w/new", "oldText": "p\n", "newText": "q\n", **own(change=changes[1])},
        content("deleted: /w/gone", change=changes[2]),
        {"type": "diff", "path": "/w/gone", "oldText": "bye\n", "newText": "", **own(change=changes[2])},
        content("modified (binary): /w/pic.png", change=changes[3]),
        {"type": "diff", "path": "/w/empty", "oldText": None, "newText": ""},
        {"type": "diff", "path": "/w/git", "oldText": "1\n", "newText": "2\n"},
        content("copied: /w/more → /w/copy", change=changes[6]),
        content("_chmod: /w/run", change=changes[7]),
        content("added (directory): /w/dir", change=changes[8]),
        content("modified: /w/silent", change=changes[9]),
        {"type": "diff", "path": "/w/extra", "oldText": "3\n", "newText": "4\n"},
    ]


@pytest.mark.parametrize(
    "patch", [{"format": "_svn", "text": "Index: x"}, {"format": "git_patch", "text": "no sections"}]
)
def test_a_patch_of_another_format_is_text(patch: Json) -> None:
    assert old({"changes": [], "patch": patch}) == [content(patch["text"])]


def test_a_diff_without_changes_and_patch_is_nothing() -> None:
    assert old({"changes": 7, "patch": None}) == []


@pytest.mark.parametrize(
    ("head", "path"),
    [
        (r'"/w/\303\251" "/w/\303\251"', "/w/é"),
        (r'"/w/\377x" "/w/\377x"', "/w/\xffx"),
        (r'"/w/é" "/w/€\"b"', '/w/€"b'),
        ('"unclosed', None),
        ("/w/a /w/b", "/w/b"),
        ("/w/a b /w/a b", "/w/a b"),
    ],
)
def test_the_paths_of_a_section_may_be_quoted(head: str, path: str | None) -> None:
    (section,) = read_patch(f"diff --git {head}")
    assert section.path == path


def test_a_hunk_ends_where_its_lines_are_of_another_kind_or_missing() -> None:
    patch = "diff --git /a /a\r\n@@ -1,5 +1,5 @@\n a\n\n-b\ndiff --git /c /c\nGIT binary patch\n@@ -1 +1,9 @@\n+x"
    first, second = read_patch(patch)
    assert first.texts() == ("a\n\nb\n", "a\n\n")
    assert second.texts() == ("", "x\n")


@given(
    path=st.sampled_from(ODD_PATHS),
    before=st.none() | texts,
    after=texts,
    cut=st.integers(0, 20),
    more=texts | st.just("@@ -1 +1 @@\n-a\n+b\n"),
)
@example(path="/w/a", before="a\n", after="b\n", cut=0, more="-c\n")
@example(path="/w/a", before="a\n\nb\n", after="c\n\nb\n", cut=0, more="")
@effort(300)
def test_a_usual_patch_is_read_at_once_as_any_other(
    path: str, before: str | None, after: str, cut: int, more: str
) -> None:
    patch = git_patch(path, before, after)
    patch = patch[: len(patch) - cut] + more
    sections = read_patch(patch)
    diffs = old({"changes": [{"operation": "modify", "path": path}], "patch": {"format": "git_patch", "text": patch}})
    found = old_diff_of(path, patch)
    assert found is None or (len(sections) == 1 and json.loads(found) == diffs[0])
    assert (found is None) == (
        len(sections) != 1 or not sections[0].hunks or sections[0].path not in (path, f"b{path}")
    )


def test_a_patch_whose_sides_alternate_many_times_is_read() -> None:
    (section,) = read_patch("diff --git /b /b\n--- /b\n+++ /b\n@@ -1,20 +1,40 @@\n" + " a\n+b\n" * 20)
    assert section.texts() == ("a\n" * 20, "a\nb\n" * 20)
    assert old_diff_of("/b", "diff --git /b /b\n--- /b\n+++ /b\n@@ -1,20 +1,40 @@\n" + " a\n+b\n" * 20) is not None


@pytest.mark.parametrize(
    ("lines", "texts"),
    [("@@ -1 +1 @@\n a\n b\n", ("a\n", "a\n")), ("@@ -1 +1,2 @@\n-a\n-b\n+c\n+d\n+e\n", ("a\nb\n", "c\nd\n"))],
)
def test_lines_beyond_what_a_hunk_announces_are_left_out_where_no_other_side_follows(
    lines: str, texts: tuple[str, str]
) -> None:
    (section,) = read_patch(f"diff --git /b /b\n{lines}")
    assert section.texts() == texts


@given(
    st.lists(st.sampled_from(PATCH.splitlines(keepends=True)) | st.text('@+- \\\n0,"', max_size=8), max_size=20).map(
        "".join
    )
)
@effort(200)
def test_any_patch_is_read(patch: str) -> None:
    for section in read_patch(patch):
        section.texts()
    old({"changes": [{"operation": "modify", "path": "/w/one"}] * 2, "patch": {"format": "git_patch", "text": patch}})
