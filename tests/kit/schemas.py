"""The official schemas of both versions: validation of messages, and values that Hypothesis makes from them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[1] / "versions" / "official"

Json = Any


@cache
def schema(version: int, *, draft: bool = False) -> dict[str, Any]:
    """Return a schema."""
    return dict(json.loads((FOLDER / f"v{version}{'.unstable' if draft else ''}.json").read_text()))


def definitions(version: int, *, draft: bool = False) -> dict[str, Any]:
    """Return the definitions of a schema, by name."""
    return dict(schema(version, draft=draft)["$defs"])


@cache
def methods(version: int, *, draft: bool = False) -> dict[tuple[str, str], list[str]]:
    """Return the definitions of each method, by the side that receives it and the method."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, definition in definitions(version, draft=draft).items():
        if "x-method" in definition:
            found.setdefault((definition["x-side"], definition["x-method"]), []).append(name)
    return found


@cache
def updates(version: int, *, draft: bool = False) -> frozenset[str]:
    """Return the kinds of `session/update`."""
    union = definitions(version, draft=draft)["SessionUpdate"]
    kinds = (branch["properties"]["sessionUpdate"].get("const") for branch in union.get("oneOf", union.get("anyOf")))
    return frozenset(kind for kind in kinds if kind)


@cache
def _validator(version: int, name: str) -> Draft202012Validator:
    whole = schema(version)
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": whole["$defs"]})


def check(version: int, name: str, value: Json) -> None:
    """Fail if a value does not fit a definition."""
    found = sorted(_validator(version, name).iter_errors(value), key=lambda error: len(error.path))
    assert not found, f"{name} of version {version}: {found[0].json_path} {found[0].message[:300]} in {value}"


def check_message(version: int, receiver: str, message: Json, asked: str = "") -> None:
    """Fail if a message for one side is not one of a version; of a response `asked` is the method."""
    assert message["jsonrpc"] == "2.0"
    if "method" not in message:
        if "error" in message:
            check(version, "Error", message["error"])
            return
        other = "client" if receiver == "agent" else "agent"
        names = methods(version).get((other, asked), [])
        found = [name for name in names if name.endswith("Response")]
        if found:
            check(version, found[0], message["result"])
        return
    names = methods(version).get((receiver, message["method"]), [])
    found = [name for name in names if name.endswith(("Request", "Notification"))]
    if message["method"] == "session/update":
        kind = message["params"]["update"].get("sessionUpdate")
        if kind not in updates(version):
            return
    if found:
        check(version, found[0], message["params"])


# Values

WORDS = st.sampled_from(
    ["", "a", "b", "line\n", "\x1b[1mx", "é€😀", "\ud83d", "{}", "diff --git a b\n@@ -1 +1 @@\n-x\n+y\n"]
)
IDS = st.sampled_from(["a", "b", "c"])
PATHS = st.sampled_from(["/w/a", "/w/b c", '/w/"q"', "/w/é"])
BASE64 = st.sampled_from(["", "YQ==", "4oI=", "rCAK", "!!", "YWJj"])
ANY = st.none() | st.booleans() | st.integers(-5, 5) | WORDS | st.dictionaries(WORDS, st.integers(0, 3), max_size=2)
OPEN = st.sampled_from(["_custom", "future"])


class Maker:
    """Makes values of one version's schema."""

    def __init__(self, version: int, draw: st.DrawFn) -> None:
        self.defs = definitions(version)
        self.draw = draw

    def make(self, rule: Json, name: str = "") -> Json:
        """Return a value that a rule allows."""
        draw = self.draw
        if rule is True:
            return draw(ANY)
        if rule == {"$ref": "#/$defs/RequestId"}:
            # The gateway gives ids that are whole numbers; null is one of version 1 alone.
            return draw(st.integers(0, 3))
        if "$ref" in rule and len(rule) == 1:
            return self.make(self.defs[rule["$ref"].rpartition("/")[2]], name)
        if "const" in rule:
            return rule["const"]
        if "enum" in rule:
            return draw(st.sampled_from(rule["enum"]))
        kind = rule.get("type")
        branches = rule.get("oneOf") or rule.get("anyOf") or []
        if "properties" in rule or (branches and kind == "object") or kind == "object":
            return self._object(rule, branches)
        if branches:
            return self.make(self._branch(branches), name)
        if "allOf" in rule:
            return self._object(rule, []) if self._is_object(rule) else self.make(rule["allOf"][0], name)
        if "$ref" in rule:
            return self.make({"$ref": rule["$ref"]}, name)
        if isinstance(kind, list):
            kind = draw(st.sampled_from(kind))
        return self._plain(kind, rule, name)

    def _branch(self, branches: list[Json]) -> Json:
        return self.draw(st.sampled_from(branches))

    def _is_object(self, rule: Json) -> bool:
        inner = (
            self.defs[rule["allOf"][0]["$ref"].rpartition("/")[2]] if "$ref" in rule["allOf"][0] else rule["allOf"][0]
        )
        return inner.get("type") == "object" or "properties" in inner or "allOf" in inner

    def _object(self, rule: Json, branches: list[Json]) -> Json:
        made: dict[str, Json] = {}
        for part in rule.get("allOf", []):
            made |= self.make(part)
        required = set(rule.get("required", []))
        for name, inner in rule.get("properties", {}).items():
            if name == "_meta":
                if self.draw(st.integers(0, 9)) == 0:
                    made[name] = {"k": 1}
            elif name in required or self.draw(st.booleans()):
                made[name] = self._open(rule, name, inner)
        extra = rule.get("additionalProperties")
        if isinstance(extra, dict) and not rule.get("properties"):
            for key in self.draw(st.lists(IDS, max_size=2)):
                made[key] = self.make(extra)
        if branches:
            chosen = self.make(self._branch(branches))
            made |= chosen
        return made

    def _open(self, rule: Json, name: str, inner: Json) -> Json:
        """Return a member; the discriminator of an unknown variant differs from all known ones."""
        if "not" in rule and inner.get("type") == "string":
            known = json.dumps(rule["not"])
            if f'"{name}"' in known:
                return self.draw(OPEN)
        return self.make(inner, name)

    def _plain(self, kind: str | None, rule: Json, name: str) -> Json:
        draw = self.draw
        match kind:
            case "null":
                return None
            case "boolean":
                return draw(st.booleans())
            case "object":
                return draw(st.dictionaries(IDS, WORDS, max_size=2))
            case "integer":
                return draw(st.integers(rule.get("minimum", -3), min(rule.get("maximum", 9), 9)))
            case "number":
                return draw(st.sampled_from([0, 0.5, 1]))
            case "array":
                least = rule.get("minItems", 0)
                return [self.make(rule["items"]) for _ in range(draw(st.integers(least, max(least, 2))))]
            case "string":
                if "contentEncoding" in rule or name in ("data", "blob"):
                    return draw(BASE64)
                if name.endswith("Id"):
                    return draw(IDS)
                if name in ("path", "oldPath", "cwd", "command"):
                    return draw(PATHS)
                if rule.get("minLength"):
                    return draw(st.sampled_from(["a", "é"]))
                return draw(OPEN | WORDS if name in ("kind", "status", "type") else WORDS)
        return draw(ANY)


@st.composite
def values(draw: st.DrawFn, version: int, name: str) -> Json:
    """Values of a definition."""
    return Maker(version, draw).make({"$ref": f"#/$defs/{name}"})
