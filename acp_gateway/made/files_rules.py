"""Rules for the files that clients may read and write: where they lie, and what they are called. Pure.

A path is judged after its symbolic links were resolved, as `files` does: what is judged is then opened without
following a link. Names are compared as the most tolerant file systems do, in any case and form of Unicode.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from http import HTTPStatus
from typing import Final, Literal

from acp_gateway.errors import GatewayError
from acp_gateway.printable import printable

PATH_SIZE: Final = 4096
"""Maximum characters of a path, as on Linux."""

QUOTED_SIZE: Final = 300
"""Maximum characters of a path in an error's message."""

Reason = Literal[
    "bad_path",
    "changed",
    "exists",
    "failed",
    "is_folder",
    "no_files",
    "no_space",
    "not_a_file",
    "not_a_folder",
    "not_found",
    "outside",
    "read_only",
    "secret",
    "too_large",
    "unreadable",
]

STATUSES: Final[Mapping[Reason, HTTPStatus]] = {
    "bad_path": HTTPStatus.BAD_REQUEST,
    "changed": HTTPStatus.CONFLICT,
    "exists": HTTPStatus.CONFLICT,
    "failed": HTTPStatus.INTERNAL_SERVER_ERROR,
    "is_folder": HTTPStatus.CONFLICT,
    "no_files": HTTPStatus.FORBIDDEN,
    "no_space": HTTPStatus.INSUFFICIENT_STORAGE,
    "not_a_file": HTTPStatus.FORBIDDEN,
    "not_a_folder": HTTPStatus.CONFLICT,
    "not_found": HTTPStatus.NOT_FOUND,
    "outside": HTTPStatus.FORBIDDEN,
    "read_only": HTTPStatus.FORBIDDEN,
    "secret": HTTPStatus.FORBIDDEN,
    "too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "unreadable": HTTPStatus.FORBIDDEN,
}
"""The reasons why a file is refused, each with its HTTP status."""

SECRET_NAMES: Final = (
    ".env",
    ".env.*",
    ".envrc",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".my.cnf",
    ".npmrc",
    ".pypirc",
    ".htpasswd",
    ".git-credentials",
    ".vault-token",
    ".ssh",
    ".gnupg",
    ".password-store",
    ".aws",
    ".azure",
    ".kube",
    ".*_history",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ecdsa_sk",
    "id_ed25519",
    "id_ed25519_sk",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "*.ppk",
    ".credentials.json",
    "auth.json",
)
"""Patterns of names of files and folders that hold keys and logins wherever they lie."""

_SECRET_NAME: Final = re.compile("|".join(map(translate, SECRET_NAMES)))

_GIT_CONFIGS: Final = frozenset({"config", "config.worktree"})
"""Files of a git folder with the addresses of its remotes, which may hold logins."""

HARMLESS_NAMES: Final = frozenset({".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults"})
"""Names that match a pattern and hold no secret by custom."""


class FileRefused(GatewayError):
    """A file can't be read or written. The text is for the person who asks."""

    exit_code = 4

    def __init__(self, why: Reason, text: str) -> None:
        self.why: Final = why
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class Place:
    """A path below a folder, without symbolic links: that of a file, a folder or nothing yet."""

    root: str
    """The folder, absolute."""
    parts: tuple[str, ...]
    """The names below it; none for the folder itself."""

    @property
    def path(self) -> str:
        """The path as a text."""
        return "/".join((self.root.rstrip("/"), *self.parts)) or "/"

    @property
    def name(self) -> str:
        """The last name."""
        return self.parts[-1] if self.parts else self.root.rpartition("/")[2]

    def below(self, *names: str) -> "Place":
        """Return a place below this one."""
        return Place(self.root, (*self.parts, *names))


@dataclass(frozen=True, slots=True)
class Territory:
    """The folders whose files one client may use in one session. All paths but `base` are without symbolic links."""

    base: str
    """The session's folder, absolute: paths that are not absolute begin there."""
    roots: tuple[str, ...]
    """The folders, absolute."""
    others: tuple[str, ...] = ()
    """Folders that it may not use, which may lie in one that it may, or around it."""
    read_only: frozenset[str] = frozenset()
    """Those where nothing may be written."""
    secrets: tuple[str, ...] = ()
    """Places that are not shown, wherever they lie."""
    _near: tuple[str, ...] = field(init=False, repr=False, compare=False)
    # Those in a root or around one, folded.

    def __post_init__(self) -> None:
        roots = [_fold_path(root) for root in self.roots]
        folded = dict.fromkeys(map(_fold_path, self.secrets))
        near = (it for it in folded if any(_is_below(it, root) or _is_below(root, it) for root in roots))
        object.__setattr__(self, "_near", tuple(near))

    def judge(self, real: str, asked: str) -> Place:
        """Return the place of a path whose symbolic links were resolved.

        `asked` is the path as the client spelled it, for the error. Raises `FileRefused`, with the same text for what
        exists outside and what does not.
        """
        holding = [root for root in (*self.others, *self.roots) if _is_below(real, root)]
        root = max(holding, key=len, default="")
        if root not in self.roots:
            folders = ", ".join(printable(root, size=QUOTED_SIZE) for root in self.roots[:3])
            why = f"{quoted(asked)} is not in a folder that this session may use"
            raise FileRefused("outside", f"{why} ({folders})" if folders else why)
        rest = real[len(root.rstrip("/")) :].strip("/")
        place = Place(root, tuple(rest.split("/")) if rest else ())
        if self.is_secret(place):
            text = f"{quoted(asked)} may hold a key or a login, so it is not sent; look at it on the machine itself"
            raise FileRefused("secret", text)
        return place

    def is_secret(self, place: Place) -> bool:
        """Return whether a place is not shown, because it may hold a secret."""
        if any(map(is_secret_name, place.parts)):
            return True
        folded = _fold_path(place.path)
        folder, _, name = folded.rpartition("/")
        return _is_git_config(folder.split("/"), name) or any(_is_below(folded, secret) for secret in self._near)

    def secrets_in(self, folder: Place) -> Callable[[str], bool]:
        """Return a function that tells whether a name in this folder, which is shown itself, is that of a secret."""
        path = _fold_path(folder.path)
        names = {secret.rpartition("/")[2] for secret in self._near if secret.rpartition("/")[0] == path}
        if any(part.endswith(".git") for part in path.split("/")):
            names |= _GIT_CONFIGS
        return lambda name: is_secret_name(name) or _fold(name) in names

    def may_write(self, place: Place) -> bool:
        """Return whether files may be written there."""
        return place.root not in self.read_only


def is_secret_name(name: str) -> bool:
    """Return whether a name is that of a file or folder with secrets."""
    folded = _fold(name)
    return folded not in HARMLESS_NAMES and _SECRET_NAME.match(folded) is not None


def _is_git_config(folders: Sequence[str], name: str) -> bool:
    return name in _GIT_CONFIGS and any(folder.endswith(".git") for folder in folders)


def check_path(path: str) -> None:
    """Raise `FileRefused` for a text that can't be a path."""
    if "\0" in path:
        raise FileRefused("bad_path", "a path has no NUL character")
    if len(path) > PATH_SIZE:
        raise FileRefused("bad_path", f"a path has at most {PATH_SIZE} characters")


def quoted(path: str) -> str:
    """Return a path as errors quote it."""
    return printable(path, size=QUOTED_SIZE) or "the session's folder"


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _fold(text: str) -> str:
    """Return a text as file systems compare it that ignore case, forms of Unicode and invisible characters."""
    if text.isascii():
        plain = text.lower()
        return plain.rstrip(" .") or plain
    plain = unicodedata.normalize("NFKC", text).casefold()
    return "".join(letter for letter in plain if unicodedata.category(letter) != "Cf").rstrip(" .") or plain


def _fold_path(path: str) -> str:
    return "/".join(map(_fold, path.rstrip("/").split("/")))
