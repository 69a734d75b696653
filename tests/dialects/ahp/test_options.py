"""The choices in a session, as models and pickers."""

import json
from typing import Any

import pytest

from acp_gateway.dialects.ahp.options import MOST, OFFER_SIZE, Options, read_options
from tests.dialects.ahp.folding import steps

MODES = {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code"}]}
MODELS = {"currentModelId": "big", "availableModels": [{"modelId": "big", "name": "Big"}, {"modelId": "small"}]}


def option(name: str, category: str | None = None, **more: Any) -> dict[str, Any]:
    values = [{"value": "low", "name": "Low"}, {"group": "g", "options": [{"value": "high", "name": "High"}]}]
    return {"id": name, "name": name.title(), "category": category, "currentValue": "low", "options": values, **more}


def read(**result: Any) -> Options:
    return read_options({name: json.dumps(value).encode() for name, value in result.items()})


def test_an_agent_that_offers_nothing_has_one_model_that_says_so() -> None:
    for options in (read(), read_options({"modes": b"{", "models": b"null"})):
        assert options.models("demo") == [{"id": "default", "provider": "demo", "name": "As the agent chooses"}]
        assert options.config() == {"schema": {"type": "object", "properties": {}}, "values": {}}
        assert options.model_for("default") is None


def test_modes_are_a_picker_and_models_are_models() -> None:
    options = read(modes=MODES, models=MODELS)
    assert [it["name"] for it in options.models("demo")] == ["Big", "small"]
    schema: dict[str, Any] = {"type": "string", "title": "Mode", "enum": ["ask", "code"], "enumLabels": ["Ask", "code"]}
    schema |= {"default": "ask", "sessionMutable": True}
    assert options.config() == {"schema": {"type": "object", "properties": {"mode": schema}}, "values": {"mode": "ask"}}
    method, params = options.pickers["mode"].request("s", "code")
    assert (method, json.loads(params)) == ("session/set_mode", {"sessionId": "s", "modeId": "code"})
    model = options.model_for("small")
    assert model is not None
    method, params = model.request("s", "small")
    assert (method, json.loads(params)) == ("session/set_model", {"sessionId": "s", "modelId": "small"})
    assert options.model_for("big") is options.model_for("huge") is None


def test_options_take_the_place_of_modes_and_models() -> None:
    every = [option("effort"), option("llm", "model"), option("style", "mode")]
    options = read(modes=MODES, models=MODELS, configOptions=every)
    assert [*options.pickers] == ["effort", "style"]
    assert [it["id"] for it in options.models("demo")] == ["low", "high"]
    method, params = options.pickers["effort"].request("s", "high")
    expected = {"sessionId": "s", "configId": "effort", "value": "high"}
    assert (method, json.loads(params)) == ("session/set_config_option", expected)


def test_values_that_no_picker_has_are_left_out() -> None:
    options = read(modes=MODES, configOptions=[option("effort")])
    chosen: dict[str, Any] = {"effort": "high", "mode": "interactive", "isolation": "folder", "odd": 1}
    assert options.fitting(chosen) == {"effort": "high"}
    assert options.config(chosen)["values"] == {"mode": "ask", "effort": "high"}


@pytest.mark.parametrize(
    "odd", [1, {}, option("x", currentValue="gone"), option(""), option("x", type="boolean", currentValue=True)]
)
def test_what_is_not_a_choice_of_texts_is_left_out(odd: Any) -> None:
    assert read(configOptions=[odd]).pickers == {}


def test_pickers_and_their_values_are_few() -> None:
    many = [{"value": str(number), "name": ""} for number in range(MOST + 1)]
    large = option("x", options=many, currentValue="0")
    options = read(configOptions=[large, *(option(str(number)) for number in range(MOST))])
    assert (len(options.pickers), len(options.pickers["x"].values)) == (MOST, MOST)


def test_what_is_large_is_not_read_and_the_rest_is_read_once() -> None:
    result = {"modes": json.dumps(MODES).encode(), "configOptions": json.dumps([{}] * OFFER_SIZE).encode()}
    assert [*read_options(result).pickers] == ["mode"]
    assert steps(lambda: read_options(result)) < 20
