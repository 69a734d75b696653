"""The reading of requests for files."""

import pytest

from acp_gateway.dialects.files.requests import (
    OCTETS,
    TEXT,
    Asked,
    BadQuery,
    RangeUnknown,
    disposition,
    media_type,
    read_query,
    read_range,
)


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("session=s&path=a/b.png", Asked("s", "a/b.png", "view")),
        ("session=s&path=", Asked("s", "", "view")),
        ("path=a%20b%2Fc+d&session=x%3A1&as=download", Asked("x:1", "a b/c d", "download")),
        ("session=s&path=%252e%252e&as=zip", Asked("s", "%2e%2e", "zip")),
        ("session=s&path=caf%C3%A9", Asked("s", "café", "view")),
    ],
)
def test_a_query_is_decoded_once(query: str, asked: Asked) -> None:
    assert read_query(query) == asked


@pytest.mark.parametrize(
    "query",
    ["", "session=s", "path=a", "session=s&path=a&path=b", "session=s&path=a&as=raw", "session=s&path=a&more=1",
     "session=s&path=caf%E9", "session=s;path=a", "&".join(["session=s"] * 9)],
)  # fmt: skip
def test_any_other_query_is_refused(query: str) -> None:
    with pytest.raises(BadQuery):
        read_query(query)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, None),
        ("bytes=0-", range(10)),
        ("bytes=2-4", range(2, 5)),
        ("bytes=2-99", range(2, 10)),
        ("bytes=9-9", range(9, 10)),
        ("bytes=-3", range(7, 10)),
        ("bytes=-99", range(10)),
        ("bytes=4-2", None),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
        ("bytes=٣-٤", None),
        ("bytes=1-" + "9" * 40, None),
    ],
)
def test_one_range_is_read_and_others_mean_the_whole_file(value: str | None, found: range | None) -> None:
    assert read_range(value, 10) == found


@pytest.mark.parametrize("value", ["bytes=10-", "bytes=10-12", "bytes=-0"])
def test_a_range_behind_the_end_is_unknown(value: str) -> None:
    with pytest.raises(RangeUnknown):
        read_range(value, 10)


def test_an_empty_file_has_no_range() -> None:
    with pytest.raises(RangeUnknown):
        read_range("bytes=0-", 0)
    assert read_range(None, 0) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("loss.PNG", "image/png"),
        ("report.html", "text/html; charset=utf-8"),
        ("train.py", TEXT),
        ("a.ts", TEXT),
        ("Makefile", TEXT),
        (".gitignore", TEXT),
        ("weights.bin", OCTETS),
        ("archive.tar.gz", OCTETS),
        ("film.mp4", "video/mp4"),
    ],
)
def test_the_type_follows_from_the_name(name: str, kind: str) -> None:
    assert media_type(name) == kind


def test_the_name_of_a_saved_file_can_not_leave_its_header() -> None:
    found = disposition('a"b\\c\r\nSet-Cookie: x/é.png', saved=True)
    assert found.startswith("attachment; filename=\"a_b_c__Set-Cookie: x/_.png\"; filename*=UTF-8''a%22b")
    assert "\r" not in found
    assert "\n" not in found
    assert disposition("a.png", saved=False) == "inline; filename=\"a.png\"; filename*=UTF-8''a.png"
