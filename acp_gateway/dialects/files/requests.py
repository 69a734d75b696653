"""Reads what a request for a file asks for: its query, its range, and the type of a file by its name."""

import re
from typing import Final, Literal, NamedTuple, get_args
from urllib.parse import parse_qs, quote

Form = Literal["view", "download", "zip"]
"""A file as a page shows it; a file to save; a folder to save, as an archive."""

_FIELDS: Final = 8

_RANGE: Final = re.compile(r"bytes=(\d{0,15})-(\d{0,15})", re.ASCII)

OCTETS: Final = "application/octet-stream"
TEXT: Final = "text/plain; charset=utf-8"
PDF: Final = "application/pdf"

TYPES: Final = {
    **dict.fromkeys(("html", "htm"), "text/html; charset=utf-8"),
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif"), "image/jpeg"),
    **dict.fromkeys(("mp4", "m4v"), "video/mp4"),
    **dict.fromkeys(("ogg", "oga", "opus"), "audio/ogg"),
    "png": "image/png",
    "apng": "image/apng",
    "gif": "image/gif",
    "webp": "image/webp",
    "avif": "image/avif",
    "bmp": "image/bmp",
    "ico": "image/x-icon",
    "svg": "image/svg+xml",
    "pdf": PDF,
    "webm": "video/webm",
    "ogv": "video/ogg",
    "mov": "video/quicktime",
    "mp3": "audio/mpeg",
    "m4a": "audio/mp4",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
}
"""Types of what browsers show by themselves. All else is text, or is saved."""

_TEXTS: Final = frozenset(
    {"txt", "md", "rst", "log", "csv", "tsv", "json", "jsonl", "ipynb", "yaml", "yml", "toml", "ini", "cfg", "conf"}
    | {"xml", "py", "pyi", "js", "mjs", "ts", "tsx", "jsx", "css", "scss", "sh", "bash", "zsh", "fish", "c", "h", "cc"}
    | {"cpp", "hpp", "cu", "cuh", "java", "kt", "go", "rs", "rb", "php", "swift", "cs", "sql", "lua", "r", "jl", "m"}
    | {"tex", "bib", "diff", "patch", "lock"}
)


class BadQuery(ValueError):
    """The query of a request is not that of a file."""


class RangeUnknown(Exception):
    """A range begins behind the end of the file."""


class Asked(NamedTuple):
    """A file or a folder that a request asks for."""

    session: str
    path: str
    form: Form


def read_query(query: str) -> Asked:
    """Read the query of a request. Raises `BadQuery`."""
    try:
        fields = parse_qs(query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_FIELDS)
    except ValueError:
        raise BadQuery("the query is ?session=ID&path=PATH, encoded as UTF-8") from None
    values = {name: value[0] for name, value in fields.items() if len(value) == 1}
    form = values.get("as", "view")
    if len(values) != len(fields) or not {"session", "path"} <= values.keys() <= {"session", "path", "as"}:
        raise BadQuery("the query is ?session=ID&path=PATH, with &as=download or &as=zip")
    for known in get_args(Form):
        if form == known:
            return Asked(values["session"], values["path"], known)
    raise BadQuery("as is view, download or zip")


def read_range(value: str | None, size: int) -> range | None:
    """Return the bytes that a `Range` header asks for; None for all of them, as for several ranges.

    Raises `RangeUnknown`.
    """
    found = None if value is None else _RANGE.fullmatch(value.strip())
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":
        first, last = max(size - int(found[2]), 0), size - 1
    else:
        first, last = int(found[1]), min(int(found[2] or size), size - 1)
        if found[2] and int(found[2]) < first:
            return None
    if first >= size or found[2] == "0" == found[1] + found[2]:
        raise RangeUnknown
    return range(first, last + 1)


def media_type(name: str) -> str:
    """Return the type of a file by its name."""
    stem, _, ending = name.lower().rpartition(".")
    if not stem or ending in _TEXTS:
        return TEXT
    return TYPES.get(ending, OCTETS)


def disposition(name: str, *, saved: bool) -> str:
    """Return the header by which a browser shows a file, or saves it under its name (RFC 6266)."""
    plain = re.sub(r'[^ -~]|["\\%]', "_", name)
    kind = "attachment" if saved else "inline"
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
