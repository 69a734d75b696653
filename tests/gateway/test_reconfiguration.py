"""Two configurations compared: what a running gateway uses at once, and what needs a restart. Hubs: `test_hub.py`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.load import AgentSection, CertificateSection, Config, HooksSection, LogSection, WorkspaceSection
from acp_gateway.config.nodes import NodeSection
from acp_gateway.gateway.reconfiguration import compare
from tests.kit.doubles import make_config

A, B = AgentSection(command=("a",)), AgentSection(command=("b",))

NODE = NodeSection(url=parse_target("gpu.example"), token_file=Path("/token"))

NOW = make_config(Path("/s"), "tcp://127.0.0.1:0", agents={"a": A, "b": B}, default_agent="a")


def test_equal_configurations_change_nothing() -> None:
    found = compare(NOW, replace(NOW))
    assert (found.config, found.changed, found.needs_restart, found.agents) == (NOW, (), (), frozenset())


@pytest.mark.parametrize(
    ("then", "lines"),
    [
        (replace(NOW, agents={**NOW.agents, "c": A}), ["agents.c: new"]),
        (
            replace(NOW, agents={"a": replace(A, command=("x",), env={"KEY": "secret"}), "b": B}),
            ["agents.a: changed (command, env)"],
        ),
        (replace(NOW, agents={"a": A}), ["agents.b: removed"]),
        (
            replace(NOW, workspaces={"w": WorkspaceSection(root=Path("/w"))}),
            ["workspaces.w: new", "workspaces.everything: removed"],
        ),
        (replace(NOW, certificates={"c": CertificateSection(subject="CN=c")}), ["certificates.c: new"]),
        (replace(NOW, hooks=HooksSection(on_turn_end=("x",))), ["hooks: on_turn_end"]),
        (replace(NOW, limits=LimitsSection(max_connections=7)), ["limits.max_connections: 7, it was 4096"]),
        (replace(NOW, gateway=replace(NOW.gateway, default_agent="b")), ["the default agent: b, it was a"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_part_that_is_used_at_once_is_a_line_without_secrets(then: Config, lines: list[str]) -> None:
    found = compare(NOW, then)
    assert (list(found.changed), found.config) == (lines, then)
    assert found.needs_restart == ()


def test_agents_that_were_changed_or_removed_are_named_and_new_ones_are_not() -> None:
    assert compare(NOW, replace(NOW, agents={"a": replace(A, cwd=Path("/x")), "c": B})).agents == {"a", "b"}


@pytest.mark.parametrize(
    ("change", "is_outdated"),
    [
        ({"workspaces": {"w": WorkspaceSection(root=Path("/w"))}}, True),
        ({"hooks": HooksSection(on_turn_end=("/w/tell",))}, True),
        ({"agents": {"a": replace(A, fence="on"), "b": replace(B, command=("/w/agent",))}}, True),
        ({"agents": {"a": replace(A, fence="on"), "b": B, "c": replace(A, env_file=Path("/w/env"))}}, True),
        ({"nodes": {"gpu": NODE}}, True),
        ({"certificates": {"c": CertificateSection(subject="CN=c", identity="ann", workspaces=("w",))}}, True),
        ({"limits": LimitsSection(max_connections=7)}, False),
        ({"agents": {"a": replace(A, fence="on"), "b": B, "c": replace(B, fence="on")}}, False),
    ],
    ids=["workspaces", "hooks", "without a fence", "its secrets", "nodes", "certificates", "limits", "with a fence"],
)
def test_a_fenced_agent_is_outdated_when_its_fence_is_by_other_sections(
    change: dict[str, Any], is_outdated: bool
) -> None:
    now = replace(NOW, agents={"a": replace(A, fence="on"), "b": B})
    assert ("a" in compare(now, replace(now, **change)).agents) is is_outdated


@pytest.mark.parametrize(
    ("then", "line"),
    [
        ({}, "nodes.gpu: removed"),
        (
            {"gpu": replace(NODE, token_file=Path("/other"), pin="sha256:" + "0" * 64)},
            "nodes.gpu: changed (token_file, pin)",
        ),
        ({"gpu": NODE, "other": NODE}, "nodes.other: new"),
    ],
)
def test_nodes_are_used_at_once(then: dict[str, NodeSection], line: str) -> None:
    found = compare(replace(NOW, nodes={"gpu": NODE}), replace(NOW, nodes=then))
    assert (found.config.nodes, found.changed, found.needs_restart) == (then, (line,), ())


def test_what_needs_a_restart_is_named_and_stays_as_it_was() -> None:
    then = replace(
        NOW,
        gateway=replace(NOW.gateway, state_dir=Path("/t"), memory_limit=1, outbox_limit=1, default_agent="b"),
        listen=(),
        log=LogSection(format="json"),
        limits=LimitsSection(max_sessions=7, sessions_per_identity=7),
    )
    found = compare(NOW, then)
    assert found.needs_restart == ("gateway.state_dir", "gateway.memory_limit", "listen", "log")
    assert found.config == replace(
        NOW,
        gateway=replace(NOW.gateway, default_agent="b"),
        limits=LimitsSection(max_sessions=7, sessions_per_identity=7),
    )
