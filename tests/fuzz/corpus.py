"""Messages of clients and agents, for all methods of the protocol and more, and their mutations.

A message is made as a tree, in which mutations find their place by number, so that one and the same mutation fits any
message; then it is written, and further ones change its bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from acp import meta
from hypothesis import strategies as st

from acp_gateway.protocol import jsonrpc, methods
from tests.fuzz import texts


def _constants() -> list[str]:
    """The names of methods that the gateway has a view of, whatever more there will be."""
    named = [value for name, value in vars(methods).items() if name.isupper() and isinstance(value, str)]
    return [name for name in named if "/" in name and not name.endswith("/")]


METHODS: Final = tuple(
    dict.fromkeys(
        (
            *methods.CLIENT_METHODS,
            *_constants(),
            *meta.AGENT_METHODS.values(),
            *meta.CLIENT_METHODS.values(),
            *(f"{family}/some_day" for family in methods.AGENT_FAMILIES),
            *("x/unknown", "_craft/drain", "session/some_day", "", "fs/", "_acp-gateway/some_day", "\ud83d"),
        )
    )
)
"""Every method of the protocol, of either side, the gateway's own, and some unknown ones."""


@dataclass(frozen=True)
class Mutation:
    """One thing that is wrong with a message. `where` counts places, as often around as need be."""

    kind: str
    where: int
    what: bytes


class Raw(bytes):
    """A JSON text that stands for itself in a message that is to be made."""


Pairs: TypeAlias = list[tuple[bytes, "Node"]]


class Members:
    """An object."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs


Node: TypeAlias = bytes | list["Node"] | Members
"""A JSON text, an array, or an object."""


def message(mutations: Sequence[Mutation] = (), **members: Any) -> bytes:
    """A message of these members, which are Python values or `Raw`, with these mutations."""
    root = _grow({"jsonrpc": "2.0"} | members)
    for mutation in mutations:
        if mutation.kind in _IN_TREES:
            _mutate(root, mutation)
    text = _write(root)
    for mutation in mutations:
        if mutation.kind in _IN_BYTES:
            text = _mutate_bytes(text, mutation)
    return text


def _grow(value: Any) -> Node:
    if isinstance(value, dict):
        return Members([(jsonrpc.encode(name), _grow(inner)) for name, inner in value.items()])
    if isinstance(value, list):
        return [_grow(inner) for inner in value]
    return bytes(value) if isinstance(value, Raw) else jsonrpc.encode(value)


def _write(node: Node) -> bytes:
    if isinstance(node, Members):
        return b"{" + b",".join(name + b":" + _write(value) for name, value in node.pairs) + b"}"
    if isinstance(node, list):
        return b"[" + b",".join(map(_write, node)) + b"]"
    return node


def _places(node: Node) -> Iterator[tuple[Members | list[Node], int]]:
    """Return the places of values, each with its container."""
    inner = [value for _, value in node.pairs] if isinstance(node, Members) else node
    if isinstance(node, bytes) or isinstance(inner, bytes):
        return
    for index, value in enumerate(inner):
        yield node, index
        yield from _places(value)


_IN_TREES: Final = ("replace", "remove", "repeat", "disguise", "rename", "wrap", "bury", "add")
_IN_BYTES: Final = ("cut", "overwrite", "insert", "append")


def _mutate(root: Node, mutation: Mutation) -> None:
    places = list(_places(root))
    if not places:
        return
    within, index = places[mutation.where % len(places)]
    other = texts.DISGUISED[mutation.where % len(texts.DISGUISED)]
    name = within.pairs[index][0] if isinstance(within, Members) else b""
    value = within.pairs[index][1] if isinstance(within, Members) else within[index]
    match mutation.kind:
        case "replace":
            _put(within, index, name, mutation.what)
        case "remove" if isinstance(within, Members):
            del within.pairs[index]
        case "remove" if isinstance(within, list):
            del within[index]
        case "repeat" if isinstance(within, Members):
            within.pairs.insert(index, (name, mutation.what))
        case "disguise" if isinstance(within, Members):
            # The same member once more, as some parsers read names.
            within.pairs.append((name.swapcase() if mutation.where % 2 else name[:2] + b"_" + name[2:], mutation.what))
        case "rename":
            _put(within, index, other, value)
        case "wrap":
            _put(within, index, name, [value])
        case "bury":
            _put(within, index, name, b"[" * 3000 + _write(value) + b"]" * 3000)
        case "add" if isinstance(within, Members):
            within.pairs.insert(index, (other, mutation.what))
        case _ if isinstance(within, list):
            within.insert(index, mutation.what)


def _put(within: Members | list[Node], index: int, name: bytes, value: Node) -> None:
    if isinstance(within, Members):
        within.pairs[index] = name, value
    else:
        within[index] = value


def _mutate_bytes(text: bytes, mutation: Mutation) -> bytes:
    at = mutation.where % (len(text) + 1)
    match mutation.kind:
        case "cut":
            return text[:at]
        case "overwrite":
            return text[:at] + mutation.what[:2] + text[at + 2 :]
        case "insert":
            return text[:at] + mutation.what + text[at:]
        case _:
            return text + mutation.what


_whats = st.one_of(
    st.sampled_from((b"null", b"{}", b"[]", b"5", b'"x"', b"true", b'"kiwi-1"', b'"plum-1"', b'["plum-1"]')),
    st.sampled_from(texts.SCALARS + texts.UNSOUND),
)

mutations = st.builds(Mutation, st.sampled_from(_IN_TREES * 2 + _IN_BYTES), st.integers(0, 60), _whats)
