"""Reads what may be chosen in a session of ACP, its model, mode and options, as models and pickers of AHP.

An agent tells it with the session, so that of its last session stands for the next one before that begins.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from acp_gateway.dialects.ahp.wire import value_of
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.text.members import AcpRequest
from acp_gateway.terminal.content import list_of, members_of, text_of

MEMBERS: Final = ("modes", "models", "configOptions")
"""Members of the result of opening a session that are read."""

OFFER_SIZE: Final = 64 * 1024
"""Maximum bytes of a member that is read; that of an agent with a hundred models has some 20 KB."""

ANY_MODEL: Final = "default"
"""The model of an agent that offers none: VS Code can't use an agent without one."""

MOST: Final = 64
"""Maximum values of a picker, and pickers: more than a person looks through."""

_MODE: Final = "mode"


@dataclass(frozen=True, slots=True)
class Choice:
    """A model, a mode or another option that may be chosen."""

    id: str
    title: str
    values: Mapping[str, str]
    """The names of the values."""
    value: str
    """The present one."""
    method: str
    """The ACP method that changes it."""

    def request(self, session: str, value: str) -> AcpRequest:
        """Return the ACP request that changes it in a session."""
        names = {methods.SET_MODE: "modeId", methods.SET_MODEL: "modelId"}
        chosen = {"configId": self.id, "value": value}
        if self.method in names:
            chosen = {names[self.method]: value}
        return AcpRequest(self.method, jsonrpc.encode({"sessionId": session, **chosen}))

    def schema(self) -> dict[str, Any]:
        """Return it as a property of a schema."""
        about = {"type": "string", "title": self.title, "enum": [*self.values], "enumLabels": [*self.values.values()]}
        return {**about, "default": self.value, "sessionMutable": True}


@dataclass(frozen=True, slots=True)
class Options:
    """The choices in a session."""

    model: Choice | None = None
    pickers: Mapping[str, Choice] = field(default_factory=dict)

    def models(self, provider: str) -> list[dict[str, Any]]:
        """Return the models of an agent; one that says so if it offers none."""
        values = {ANY_MODEL: "As the agent chooses"} if self.model is None else self.model.values
        return [{"id": model, "provider": provider, "name": name} for model, name in values.items()]

    def config(self, chosen: Mapping[str, str] = {}) -> dict[str, Any]:
        """Return schema and values of the pickers; `chosen` has values of a session that has not begun."""
        schema = {name: choice.schema() for name, choice in self.pickers.items()}
        return {"schema": {"type": "object", "properties": schema}, "values": self.values | self.fitting(chosen)}

    @property
    def values(self) -> dict[str, str]:
        """The present values of the pickers."""
        return {name: choice.value for name, choice in self.pickers.items()}

    def fitting(self, chosen: Mapping[str, Any]) -> dict[str, str]:
        """Return those values that a picker has: VS Code also sends some of its own."""
        known = {name: choice.values for name, choice in self.pickers.items()}
        return {
            name: value for name, value in chosen.items() if isinstance(value, str) and value in known.get(name, ())
        }

    def model_for(self, wanted: str) -> Choice | None:
        """Return the choice of the model if this one is to be set in its place."""
        model = self.model
        return model if model is not None and wanted in model.values and wanted != model.value else None


def read_options(result: Mapping[str, bytes]) -> Options:
    """Return what may be chosen, from members of the result of opening a session, which are JSON texts."""
    # It is asked for whenever anything in the session changes.
    return _read(*(result.get(name, b"null") for name in MEMBERS))


@lru_cache(maxsize=32)
def _read(*members: bytes) -> Options:
    modes, models, options = (value_of(it if len(it) <= OFFER_SIZE else b"null", OFFER_SIZE) for it in members)
    found = [choice for one in list_of(options)[:MOST] if (choice := _option(members_of(one))) is not None]
    pickers = {choice.id: choice for choice, _ in found}
    model = next((choice for choice, category in found if category == "model"), None)
    if model is not None:
        del pickers[model.id]
    else:
        model = _listed(
            members_of(models), methods.SET_MODEL, ("availableModels", "modelId", "currentModelId"), "Model"
        )
    mode = _listed(members_of(modes), methods.SET_MODE, ("availableModes", "id", "currentModeId"), "Mode")
    # Agents that offer the mode as an option offer it in the former way too.
    if mode is not None and not any(category == "mode" for _, category in found):
        pickers = {_MODE: mode, **pickers}
    return Options(model, pickers)


def _option(option: Mapping[str, Any]) -> tuple[Choice, str] | None:
    """Return a config option of ACP, and its category; None if it is not a choice of texts."""
    name, value, values = text_of(option.get("id")), text_of(option.get("currentValue")), {}
    for one in map(members_of, list_of(option.get("options"))):
        for each in map(members_of, list_of(one["options"]) if "options" in one else [one]):
            values[text_of(each.get("value"))] = text_of(each.get("name")) or text_of(each.get("value"))
    values.pop("", None)
    if not name or value not in values:
        return None
    title, method = text_of(option.get("name")) or name, methods.SET_CONFIG_OPTION
    return Choice(name, title, dict([*values.items()][:MOST]), value, method), text_of(option.get("category"))


def _listed(told: Mapping[str, Any], method: str, names: tuple[str, str, str], title: str) -> Choice | None:
    """Return the modes or models of ACP; `names` are those of the list, the id in it, and the present one."""
    offered, key, present = names
    each = [members_of(one) for one in list_of(told.get(offered))[:MOST]]
    values = {text_of(one.get(key)): text_of(one.get("name")) or text_of(one.get(key)) for one in each}
    values.pop("", None)
    value = text_of(told.get(present))
    return Choice(title.lower(), title, values, value, method) if value in values else None
