"""The defaults of the limits, held against each other."""

from pathlib import Path

import pytest

from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.schema import Entry, read_section
from acp_gateway.errors import ConfigError

LIMITS = LimitsSection()


def read_limits(tmp_path: Path, line: str) -> LimitsSection:
    path = tmp_path / "config.toml"
    path.write_text(line)
    file, problems = TomlFile.read(path), list[ConfigError]()
    read = read_section(LimitsSection, Entry(file, (), file.data), problems)
    if read is None:
        raise problems[0]
    return read


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("handshakes_per_address", "max_handshakes"),
        ("connections_per_guest", "connections_per_identity"),
        ("connections_per_identity", "max_connections"),
        ("reserved_connections", "max_connections"),
        ("sessions_per_identity", "max_sessions"),
        ("queued_prompts_per_session", "queued_prompts_per_identity"),
        ("queued_prompts_per_identity", "max_queued_prompts"),
    ],
)
def test_the_default_limit_of_a_part_is_below_that_of_the_whole(part: str, whole: str) -> None:
    assert getattr(LIMITS, part) < getattr(LIMITS, whole)


def test_the_message_burst_is_longer_than_a_second_of_the_rate() -> None:
    assert LIMITS.message_burst > LIMITS.messages_per_second


@pytest.mark.parametrize(
    ("text", "unit", "amount"),
    [
        ("20 USD", "USD", 20_000_000),
        ("0.05 EUR", "EUR", 50_000),
        ("700 tokens", "tokens", 700),
        ("500k tokens", "tokens", 500_000),
        ("5M tokens", "tokens", 5_000_000),
    ],
)
def test_a_budget_is_money_of_one_currency_or_tokens(text: str, unit: str, amount: int, tmp_path: Path) -> None:
    budget = read_limits(tmp_path, f'cost_per_day = "{text}"').cost_per_day
    assert budget is not None
    assert (budget.unit, budget.amount, str(budget)) == (unit, amount, text)


@pytest.mark.parametrize("value", ['"20"', "20", '"20 usd"', '"0.00 USD"', '"0 tokens"', '"1.5M tokens"', '"20 USD "'])
def test_another_budget_is_an_error_with_examples(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='"20 USD" or "5M tokens"'):
        read_limits(tmp_path, f"cost_per_identity = {value}")
