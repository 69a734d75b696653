"""The examples for Prometheus and the metrics themselves, checked by promtool; and Prometheus reading a gateway."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.kit.prometheus_examples import FOLDER, alerts, dashboard_queries
from tests.kit.running import RunningGateway, prepare, run_program, start_gateway

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def promtool() -> str:
    """Debian's package `prometheus` has it."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed; in Debian: apt-get install prometheus")
    return program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The examples with the files that they name."""
    shutil.copytree(FOLDER, tmp_path / "prometheus")
    run_program("certs", "create", "--host", "box.example", "--out", tmp_path / "prometheus")
    (tmp_path / "prometheus" / "acp-gateway.token").write_text("acpgwm_x")
    return tmp_path / "prometheus"


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway whose metrics are at a loopback address of their own."""
    directory = tmp_path_factory.mktemp("metrics")
    pin = prepare(directory, '[agents.a]\ncommand = ["cat"]\n')
    text = (directory / "config.toml").read_text()
    text = re.sub(r'url = "ws://.*"\n', '\\g<0>serves = ["metrics"]\n', text)
    (directory / "config.toml").write_text(text)
    running = start_gateway(directory, pin)
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


def said(*command: str | Path, text: str | None = None) -> str:
    """Run a program to its end, and return all of its output."""
    done = subprocess.run(
        list(map(str, command)),
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_promtool_accepts_the_configuration_and_the_rules(promtool: str, folder: Path) -> None:
    assert "SUCCESS" in said(promtool, "check", "config", folder / "prometheus.yml")
    assert f"SUCCESS: {len(alerts())} rules found" in said(promtool, "check", "rules", folder / "rules.yml")


def test_promtool_accepts_each_query_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    queries = [query.text for _, query, _ in dashboard_queries()]
    filled = [text.replace("$__rate_interval", "1m").replace("$instance", ".+") for text in queries]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(filled)]
    # JSON is YAML.
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in said(promtool, "check", "rules", tmp_path / "queries.yml")


SERIES = {
    "AcpGatewayDown": ('up{job="acp-gateway-local",instance="box"}', "0x60", "1x60"),
    "AcpGatewayDecisionsWait": ('acp_gateway_waiting_decisions{agent="a",instance="box"}', "1x60", "0x39 1x20"),
    "AcpGatewayStorageProblem": ('acp_gateway_storage_problem{instance="box"}', "1x60", "0x60"),
    "AcpGatewayRefusals": ('acp_gateway_refusals_total{reason="unauthorized",instance="box"}', "0+60x60", "0+6x60"),
    "AcpGatewayAgentRestarts": (
        'acp_gateway_agent_exits_total{agent="a",how="exited",instance="box"}',
        "0+1x60",
        "1x60",
    ),
    "AcpGatewayEventLoopSlow": (
        'acp_gateway_event_loop_lag_seconds_bucket{instance="box",le="0.1"}',
        "0x60",
        "0+60x60",
    ),
}
"""For each alert the series that decides, with one value a minute for an hour: how it makes the alert fire, and how it
does not."""

OTHERS = {
    'acp_gateway_refusals_total{reason="expired",instance="box"}': "0+60x60",
    'acp_gateway_agent_exits_total{agent="a",how="stopped",instance="box"}': "0+1x60",
    'acp_gateway_event_loop_lag_seconds_bucket{instance="box",le="0.25"}': "0+60x60",
    'acp_gateway_event_loop_lag_seconds_bucket{instance="box",le="+Inf"}': "0+60x60",
}
"""Series that are there as well, and make no alert fire."""


@pytest.mark.parametrize("name", [None, *(alert.name for alert in alerts())])
def test_an_alert_fires_for_its_reason_alone(name: str | None, promtool: str, folder: Path) -> None:
    given = OTHERS | {series: bad if alert == name else good for alert, (series, bad, good) in SERIES.items()}
    expected = {alert: [{"labels": "{}", "value": 1}] if alert == name else [] for alert in SERIES}
    test = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": series, "values": values} for series, values in given.items()],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                        "eval_time": "59m",
                        "exp_samples": samples,
                    }
                    for alert, samples in expected.items()
                ],
            }
        ],
    }
    # JSON is YAML.
    (folder / "test.yml").write_text(json.dumps(test))
    assert "SUCCESS" in said(promtool, "test", "rules", folder / "test.yml")


def test_promtool_finds_no_fault_with_the_metrics(promtool: str, metrics: RunningGateway) -> None:
    with urlopen(Request(metrics.urls["http"]), timeout=60) as response:  # noqa: S310 - loopback.
        text = response.read().decode()
    assert re.search(r"^acp_gateway_build_info\{", text, re.MULTILINE)
    said(promtool, "check", "metrics", text=text)
