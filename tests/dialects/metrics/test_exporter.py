"""Metrics as Prometheus reads them, and who may read them."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.cluster import ClusterSection, RedisAddress
from acp_gateway.config.load import ListenSection
from acp_gateway.config.nodes import NodeSection
from acp_gateway.dialects.metrics.exporter import CACHE_TIME, MetricsExporter
from acp_gateway.errors import ConfigError
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.made.machine_looks import MachineLooks
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server import config_check
from acp_gateway.server.config_check import problems_with_files
from acp_gateway.server.handshake_limits import HandshakeLimiter
from acp_gateway.server.serve import serve
from tests.kit.doubles import ServingAgents, make_config
from tests.kit.echoing import (
    TCP,
    WS,
    EchoingGateway,
    ask,
    bearer,
    line_editor,
    listening,
    open_next,
    port_of,
    upgrade,
    websocket_editor,
)
from tests.kit.http_client import Http, http_client, new_session
from tests.kit.nvml import FakeGpu, FakeNvml

SHARED = ListenSection(url=WS, serves=("acp", "metrics"))
OWN = ListenSection(url=WS, serves=("metrics",))


def parse(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The samples above zero, by name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.value:
                found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def labels(**named: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(named.items()))


@pytest.fixture
def serving_gateway(agents: ServingAgents, spawner: Spawner, tmp_path: Path) -> Gateway:
    return Gateway(make_config(tmp_path / "state", WS), TokenStore(tmp_path / "state"), spawner, {})


def scrape(gateway: Gateway) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    return parse(MetricsExporter(gateway, HandshakeLimiter(gateway.config, gateway.audit)).response().body.decode())


# Access


async def test_metrics_beside_acp_need_a_token_of_the_role_metrics(gateway: EchoingGateway) -> None:
    reader, secret = gateway.tokens.create("prometheus", None, None, role="metrics")
    async with listening(SHARED, gateway) as listener:
        bare = await ask(listener, "/metrics")
        anns = await ask(listener, "/metrics", bearer(gateway.token()))
        full = await ask(listener, "/metrics", bearer(secret))
        head = await ask(listener, "/metrics", bearer(secret), method="HEAD")
    assert [answer.status for answer in (bare, anns, full, head)] == [401, 403, 200, 200]
    assert "--role metrics" in anns.body
    assert full.headers["content-type"][0].startswith("text/plain; version=")
    assert "acp_gateway_build_info" in parse(full.body)
    assert head.body == ""
    assert reader.id in gateway.storage.token_uses()


async def test_a_token_of_the_role_metrics_opens_nothing_else(gateway: EchoingGateway) -> None:
    secret = gateway.tokens.create("prometheus", None, None, role="metrics")[1]
    async with listening(SHARED, gateway) as listener:
        upgraded = await ask(listener, "/acp", *upgrade(bearer(secret)))
        control = await ask(listener, "/acp?control=1", *upgrade(bearer(secret)))
        posted = await ask(listener, "/acp", bearer(secret), "Content-Type: application/json", method="POST")
    assert [answer.status for answer in (upgraded, control, posted)] == [403, 403, 403]
    assert gateway.served == []


async def test_metrics_at_a_loopback_address_of_their_own_need_no_token(gateway: EchoingGateway) -> None:
    async with listening(WS, gateway), open_next(OWN, gateway) as listener:
        answer = await ask(listener, "/metrics")
        foreign = await ask(listener, "/metrics", host="evil.example")
    assert (answer.status, foreign.status) == (200, 403)


async def test_metrics_at_a_unix_socket_of_their_own_need_no_token(gateway: EchoingGateway, unix: str) -> None:
    section = ListenSection(url=unix, serves=("metrics",))
    async with listening(WS, gateway), open_next(section, gateway):
        answers = []
        for path in ("/metrics", "/readyz", "/acp"):
            async with await trio.open_unix_socket(unix.removeprefix("unix://")) as stream:
                answers.append(await Http(stream).ask("GET", path, None))
    assert [answer.status for answer in answers] == [200, 200, 404]
    assert "acp_gateway_build_info" in parse(answers[0].body.decode())


async def test_the_log_names_the_address_of_metrics(gateway: EchoingGateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with listening(WS, gateway), open_next(OWN, gateway) as listener:
        await ask(listener, "/healthz")
        assert re.search(rf"listening on http://127.0.0.1:{port_of(listener)}/metrics$", caplog.text, re.MULTILINE)


async def test_metrics_at_a_public_address_of_their_own_need_a_token(gateway: EchoingGateway) -> None:
    section = ListenSection(url="ws://0.0.0.0:0", serves=("metrics",), insecure_plaintext=True)
    async with listening(section, gateway) as listener:
        assert (await ask(listener, "/metrics")).status == 401


async def test_metrics_are_not_found_where_serves_does_not_name_them(gateway: EchoingGateway) -> None:
    secret = gateway.tokens.create("prometheus", None, None, role="metrics")[1]
    async with listening(WS, gateway) as listener:
        assert (await ask(listener, "/metrics", bearer(secret))).status == 404


# Values


async def test_a_conversation_is_counted_without_the_names_of_sessions_and_identities(
    serving_gateway: Gateway, agents: ServingAgents
) -> None:
    async with http_client(serving_gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events:
            session = await new_session(ann, events)
            async with ann.stream(session) as updates:
                params = {"sessionId": session, "prompt": [{"type": "text", "text": "hello"}]}
                await ann.post({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": params})
                await agents[0].got("session/prompt")
                await ann.post({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}})
                await updates.next()
                during = scrape(serving_gateway)
    text = json.dumps([[name, *map(str, values)] for name, values in during.items()])
    assert session not in text
    assert "ann" not in re.findall(r"\w+", text)
    assert during["acp_gateway_connections"] == {labels(state="connected", transport="http"): 1}
    assert during["acp_gateway_sessions"] == {labels(agent="obliging", state="open"): 1}
    assert during["acp_gateway_turns_total"] == {labels(agent="obliging", stop_reason="cancelled"): 1}
    assert during["acp_gateway_turn_seconds_count"] == {labels(agent="obliging"): 1}
    assert during["acp_gateway_agent_starts_total"] == {labels(agent="obliging"): 1}
    messages = during["acp_gateway_messages_total"]
    assert messages[labels(direction="from_client", method="session/prompt")] == 1
    assert messages[labels(direction="from_agent", method="response")] == 3
    sizes = during["acp_gateway_bytes_total"]
    assert {dict(key)["direction"] for key in sizes} == {"from_client", "from_agent", "to_client", "to_agent"}
    assert during["acp_gateway_journal_bytes"][()] > 0
    assert "acp_gateway_storage_problem" not in during
    after = scrape(serving_gateway)
    assert after["acp_gateway_agent_exits_total"] == {labels(agent="obliging", how="stopped"): 1}
    assert after["acp_gateway_detached_total"] == {labels(reason="gateway_stopping"): 1}
    assert after["acp_gateway_bytes_total"][labels(direction="to_client")] >= sizes[labels(direction="to_client")]
    assert "acp_gateway_connections" not in after


async def test_the_machine_is_read_at_a_scrape_for_the_next_one(serving_gateway: Gateway) -> None:
    library = FakeNvml(FakeGpu("H100", 50, 80, 40, 66))
    serving_gateway.machine = MachineLooks(list, lambda: ["/"], lambda: library)
    async with trio.open_nursery() as nursery:
        await nursery.start(serving_gateway.run)
        assert "acp_gateway_machine_processors" not in scrape(serving_gateway)
        await serving_gateway.machine.look()
        found = scrape(serving_gateway)
        nursery.cancel_scope.cancel()
    assert found["acp_gateway_machine_processors"] == {(): os.cpu_count()}
    for name, key in ("memory", ()), ("disk", labels(path="/")):
        sizes = [found[f"acp_gateway_machine_{name}_{which}"][key] for which in ("bytes", "free_bytes")]
        assert sizes[0] > sizes[1] > 0
    gpu = labels(gpu="0", name="H100")
    assert found["acp_gateway_gpu_use_ratio"] == {gpu: 0.5}
    assert found["acp_gateway_gpu_memory_bytes"] == {gpu: 80}
    assert found["acp_gateway_gpu_memory_used_bytes"] == {gpu: 40}
    assert found["acp_gateway_gpu_temperature_celsius"] == {gpu: 66}


@pytest.mark.parametrize("transport", ["websocket", "lines"])
async def test_control_connections_are_counted_while_they_are_open(transport: str, serving_gateway: Gateway) -> None:
    token = serving_gateway.tokens.create("laptop", "ann", None)[1]
    async with listening(WS if transport == "websocket" else TCP, serving_gateway) as listener:
        opening = {
            "websocket": websocket_editor(listener, token, control="1"),
            "lines": line_editor(listener, token=token, control=True),
        }[transport]
        async with opening as editor:
            await editor.request("_acp-gateway/access")
            during = scrape(serving_gateway)
        while serving_gateway.connections.served:
            await trio.lowlevel.checkpoint()
        after = scrape(serving_gateway)
    assert during["acp_gateway_connections"] == {labels(state="connected", transport=transport): 1}
    assert "acp_gateway_connections" not in after


async def test_costs_are_told_in_units_of_their_currencies(serving_gateway: Gateway) -> None:
    serving_gateway.metrics.count_spent("memory", {"USD": 1_500_000, "output": 7})
    told = scrape(serving_gateway)
    assert told["acp_gateway_cost_total"] == {labels(agent="memory", currency="USD"): 1.5}
    assert told["acp_gateway_tokens_total"] == {labels(agent="memory", kind="output"): 7}


async def test_the_text_is_made_again_after_cache_time_and_no_sooner(
    gateway: EchoingGateway, mock_clock: MockClock
) -> None:
    exporter = MetricsExporter(gateway, HandshakeLimiter(gateway.config, gateway.audit))
    first = exporter.response()
    gateway.metrics.resumes["resumed"] += 1
    mock_clock.jump(CACHE_TIME / 2)
    assert exporter.response() is first
    mock_clock.jump(CACHE_TIME / 2)
    assert parse(exporter.response().body.decode())["acp_gateway_resumes_total"] == {labels(result="resumed"): 1}


async def test_refusals_and_requests_with_two_readings_are_counted_by_reason(gateway: EchoingGateway) -> None:
    async with listening(WS, gateway), open_next(OWN, gateway) as own:
        await ask(own, "/readyz", bearer("acpgw_x"))
        await ask(own, "/readyz", bearer("a"), bearer("b"))
        found = parse((await ask(own, "/metrics")).body)
    assert found["acp_gateway_refusals_total"] == {labels(reason="unauthorized"): 1, labels(reason="protocol"): 1}


async def test_a_link_that_cannot_be_resumed_is_counted_by_reason(serving_gateway: Gateway) -> None:
    async with http_client(serving_gateway) as ann:
        await ask(
            ann.listener, "/acp", *upgrade(bearer(ann.token or "")), "Acp-Connection-Id: x", "Acp-Gateway-Resume: 0"
        )
    assert +serving_gateway.metrics.resumes == {"unknown": 1}


async def test_the_event_loop_is_observed_once_a_second(gateway: EchoingGateway, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.run)
        await trio.sleep(3.5)
        nursery.cancel_scope.cancel()
    assert sum(gateway.metrics.event_loop_lag.counts) == 3


async def test_what_may_be_counted_is_at_zero_from_the_start(gateway: EchoingGateway) -> None:
    text = MetricsExporter(gateway, HandshakeLimiter(gateway.config, gateway.audit)).response().body.decode()
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    without = {name for name, samples in families.items() if name.startswith("acp_gateway_") and not samples}
    assert without == {"acp_gateway_sessions", "acp_gateway_cost"}
    exits = {(sample.labels["agent"], sample.labels["how"]) for sample in families["acp_gateway_agent_exits"]}
    hows = ("exited", "stopped", "given_up", "not_started")
    assert exits == {(agent, how) for agent in ("first", "second") for how in hows}


async def test_a_node_is_up_while_it_answers(tmp_path: Path, serving_gateway: Gateway) -> None:
    section = NodeSection(url=parse_target("wss://gpu.example"), token_file=tmp_path / "token")
    directory = serving_gateway.extensions.directory = NodeDirectory({"gpu1": section, "gpu2": section}, 0.0)
    directory.set_up("gpu1", [], "1.0", 1_000_000_000.0)
    shown = scrape(serving_gateway)
    assert shown["acp_gateway_node_up"] == {labels(node="gpu1"): 1}
    assert shown["acp_gateway_node_seen_timestamp_seconds"] == {labels(node="gpu1"): 1_000_000_000}


@pytest.mark.parametrize("up", [True, False])
async def test_cluster_is_up_while_its_directory_can_be_reached(
    up: bool, tmp_path: Path, serving_gateway: Gateway
) -> None:
    address = RedisAddress("127.0.0.1", 1, "", tls=False, db=0, user=None)
    section = ClusterSection(url=address, name="gpu1", token_file=tmp_path / "token")
    serving_gateway.config = replace(serving_gateway.config, cluster=section)
    serving_gateway.extensions.cluster_up = lambda: up
    exporter = MetricsExporter(serving_gateway, HandshakeLimiter(serving_gateway.config, serving_gateway.audit))
    assert f"acp_gateway_cluster_up {float(up)}\n".encode() in exporter.response().body


# The library


async def test_serves_metrics_without_prometheus_client_is_an_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_check, "find_spec", lambda _: None)
    config = make_config(tmp_path / "state", WS)
    asking = replace(config, listen=(*config.listen, OWN))
    with pytest.raises(ConfigError, match=re.escape("`pipx install --force '.[all]'` in a checkout")):
        await serve(asking, {})
    assert [finding.severity for finding in problems_with_files(asking)] == ["error"]
    assert problems_with_files(config) == []
