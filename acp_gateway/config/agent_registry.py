"""Reads the public registry of ACP agents, and makes the command of an entry, pinned to one version. Pure.

An entry (`agent.json`) names how the agent is distributed: as a package that `npx` or `uvx` runs, or as a binary for
each platform. Nothing in it is trusted: names that become paths are checked, and text is escaped where it is printed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from acp_gateway.errors import ConfigError

PUBLIC_REGISTRY: Final = "https://cdn.agentclientprotocol.com/registry/v1/latest/registry.json"
"""The index of the public registry."""

Kind = Literal["binary", "npx", "uvx"]
"""Form in which an agent is distributed."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""The kinds in the order in which they are preferred: the hash of a binary is known, and it needs nothing else."""

ARCHIVES: Final[Mapping[str, str]] = {
    ".tar.gz": "tar",
    ".tgz": "tar",
    ".tar.bz2": "tar",
    ".tbz2": "tar",
    ".tar.xz": "tar",
    ".zip": "zip",
}
"""Archives that can be unpacked, by the end of their name."""

_INSTALLERS: Final = (".dmg", ".pkg", ".deb", ".rpm", ".msi", ".appimage")
_ID: Final = re.compile(r"[a-z][a-z0-9-]{0,63}")
_VERSION: Final = re.compile(r"[0-9][0-9A-Za-z.+-]{0,63}")
_EXACT: Final = re.compile(r"v?[0-9]+(\.[0-9]+)*[0-9A-Za-z.+-]*")
_NPM: Final = re.compile(r"(?P<name>(@[a-z0-9~_.-]+/)?[a-z0-9~_.-]+)(@(?P<version>.+))?", re.IGNORECASE)
_PYPI: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<extras>\[[A-Za-z0-9._,-]+\])?((==|@)(?P<version>.+))?"
)
_MOST_WORDS: Final = 100
_LONGEST_WORD: Final = 4096


class _Target(msgspec.Struct, rename={"variables": "env"}):
    archive: str
    cmd: str
    sha256: str | None = None
    args: list[str] = []
    variables: dict[str, str] = {}


class _Package(msgspec.Struct, rename={"variables": "env"}):
    package: str
    cmd: str | None = None
    args: list[str] = []
    variables: dict[str, str] = {}


class _Distribution(msgspec.Struct):
    binary: dict[str, _Target] = {}
    npx: _Package | None = None
    uvx: _Package | None = None


class RegistryAgent(msgspec.Struct):
    """One entry of a registry."""

    id: str
    name: str
    version: str
    distribution: _Distribution
    description: str = ""
    license: str | None = None
    website: str | None = None


class _Index(msgspec.Struct):
    agents: list[msgspec.Raw]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A distribution of an agent for this machine."""

    kind: Kind
    version: str
    words: tuple[str, ...]
    """The command; of a binary, the program's path in its folder, and the arguments."""
    env: Mapping[str, str] = field(repr=False)
    archive: str | None = None
    """The URL of a binary."""
    sha256: str | None = None
    """The hash of the file at `archive`, if the registry has it, in lower case."""
    package: str | None = None
    """The package and its version, as the runner takes it."""


def read_registry(content: bytes, source: str) -> dict[str, RegistryAgent]:
    """Read an index (`registry.json`) or one entry (`agent.json`), by id.

    Entries of an index that can't be read are left out: a later version of the format may have other members. Raises
    `ConfigError` for content that is neither, and for a single entry that can't be read.
    """
    try:
        index = msgspec.json.decode(content, type=_Index)
    except (msgspec.DecodeError, RecursionError):
        return {(agent := _read_agent(content, source)).id: agent}
    found = {}
    for entry in index.agents:
        try:
            agent = _read_agent(bytes(entry), source)
        except ConfigError:
            continue
        found[agent.id] = agent
    return found


def _read_agent(content: bytes, source: str) -> RegistryAgent:
    try:
        agent = msgspec.json.decode(content, type=RegistryAgent)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"is neither an ACP registry nor an entry of one: {error}", file=source) from None
    if not _ID.fullmatch(agent.id):
        raise ConfigError(
            f"{agent.id[:64]!r} is not an id of an agent: lower-case letters, digits, hyphens", file=source
        )
    if not _VERSION.fullmatch(agent.version):
        raise ConfigError(f"{agent.version[:64]!r} is not a version", file=source, key=agent.id)
    return agent


def platform_name(system: str, machine: str) -> str:
    """Return the registry's name of a platform, from `sys.platform` and `platform.machine()`."""
    processor = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine.lower(), machine.lower())
    return f"{'windows' if system == 'win32' else system}-{processor}"


def kinds_for(agent: RegistryAgent, platform: str) -> list[Kind]:
    """Return the kinds in which an agent is there for a platform, the preferred one first."""
    offered = {"binary": platform in agent.distribution.binary}
    offered |= {"npx": agent.distribution.npx is not None, "uvx": agent.distribution.uvx is not None}
    return [kind for kind in KINDS if offered[kind]]


def choose(agent: RegistryAgent, platform: str, kind: Kind | None, runners: Sequence[str]) -> Choice:
    """Choose how to run an agent.

    Args:
        agent: the entry.
        platform: the registry's name of this platform.
        kind: the kind to use; None for the preferred one.
        runners: those of `npx` and `uvx` that this machine has.

    Raises `ConfigError` if there is no such distribution, or it is not pinned to one version.
    """
    offered = kinds_for(agent, platform)
    if kind is not None and kind not in offered:
        raise ConfigError(f"{agent.id} is not there as {kind} for {platform}; there is: {', '.join(offered) or 'none'}")
    runnable = [each for each in offered if each == "binary" or each in runners]
    wanted = [kind] if kind is not None else runnable
    if not wanted:
        if offered:
            tool = {"npx": "Node.js, which has npx", "uvx": "uv, which has uvx"}[offered[0]]
            raise ConfigError(f"{agent.id} needs {tool}: install that first, or add --kind {offered[0]} to go on")
        raise ConfigError(f"{agent.id} is not there for {platform}")
    chosen = wanted[0]
    distribution = agent.distribution
    if chosen == "binary":
        return _choose_binary(agent, distribution.binary[platform])
    package = distribution.npx if chosen == "npx" else distribution.uvx
    assert package is not None
    return _choose_package(agent, package, chosen)


def _choose_package(agent: RegistryAgent, package: _Package, kind: Kind) -> Choice:
    _check_words(agent, [package.package, package.cmd or "x", *package.args], package.variables)
    found = (_NPM if kind == "npx" else _PYPI).fullmatch(package.package)
    if found is None:
        raise ConfigError(f"{package.package!r} is not a name of a package for {kind}", key=agent.id)
    version = found["version"] or agent.version
    if not _EXACT.fullmatch(version):
        raise ConfigError(f"{package.package!r} is not pinned to one version", key=agent.id)
    if kind == "npx":
        pinned = f"{found['name']}@{version}"
        # Without the name of a program, npx finds the only one of the package.
        words = (
            ["npx", "--yes", pinned]
            if package.cmd is None
            else ["npx", "--yes", f"--package={pinned}", "--", package.cmd]
        )
    else:
        pinned = f"{found['name']}{found['extras'] or ''}=={version}"
        words = ["uvx", f"--from={pinned}", package.cmd or found["name"]]
    return Choice(kind=kind, version=version, words=(*words, *package.args), env=package.variables, package=pinned)


def _choose_binary(agent: RegistryAgent, target: _Target) -> Choice:
    _check_words(agent, [target.archive, target.cmd, *target.args], target.variables)
    path = PurePosixPath(target.cmd)
    if path.is_absolute() or ".." in path.parts or "\\" in target.cmd or not path.name:
        raise ConfigError(f"{target.cmd!r} is not a path below the agent's folder", key=agent.id)
    if urlsplit(target.archive).path.lower().endswith(_INSTALLERS):
        raise ConfigError("comes as an installer, which this can't unpack", key=agent.id)
    if target.sha256 is not None and not re.fullmatch(r"[0-9A-Fa-f]{64}", target.sha256):
        raise ConfigError("its sha256 is not one: 64 hexadecimal digits", key=agent.id)
    return Choice(
        kind="binary",
        version=agent.version,
        words=(str(path), *target.args),
        env=target.variables,
        archive=target.archive,
        sha256=None if target.sha256 is None else target.sha256.lower(),
    )


def is_older(version: str, than: str) -> bool:
    """Compare the numbers that two versions begin with; suffixes don't count."""
    numbers = [tuple(map(int, re.findall(r"[0-9]+", re.split(r"[-+]", each)[0]))) for each in (version, than)]
    return numbers[0] < numbers[1]


def archive_format(url: str) -> str | None:
    """Return `tar` or `zip` for the URL of an archive, None for that of a program itself."""
    path = urlsplit(url).path.lower()
    return next((form for end, form in ARCHIVES.items() if path.endswith(end)), None)


def _check_words(agent: RegistryAgent, words: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise `ConfigError` for what can't be, or should not be, a word of a command or a variable."""
    everything = [*words, *env, *env.values()]
    if len(everything) > _MOST_WORDS or any(len(word) > _LONGEST_WORD for word in everything):
        raise ConfigError("its command is too long", key=agent.id)
    if not all(words[:2]) or not all(word.isprintable() for word in everything):
        raise ConfigError("its command has an empty word or a control character", key=agent.id)
    if not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in env):
        raise ConfigError("a name in its environment is malformed", key=agent.id)
