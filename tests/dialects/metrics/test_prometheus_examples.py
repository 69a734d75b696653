"""The dashboard and the alerts of examples/prometheus, compared with the metrics that a gateway really has."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from acp_gateway.dialects.metrics.exporter import MetricsExporter
from acp_gateway.errors import AccessError
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.handshake_limits import HandshakeLimiter
from tests.kit.doubles import ServingAgents, make_config
from tests.kit.echoing import WS
from tests.kit.http_client import http_client, new_session
from tests.kit.prometheus_examples import FOLDER, TARGET_LABELS, Query, alerts, dashboard, dashboard_queries, parse

PANELS = dashboard()["panels"]

SOURCE = {"type": "prometheus", "uid": "${datasource}"}

COLUMNS = 24
"""Width of Grafana's grid."""

QUERIES = [
    *(pytest.param(query, legend, id=f"{title}: {legend}") for title, query, legend in dashboard_queries()),
    *(pytest.param(alert.query, alert.annotations, id=alert.name) for alert in alerts()),
]


@dataclass
class Exposed:
    """The series of a gateway with a session: by name, the values of each label."""

    labels: dict[str, dict[str, set[str]]]

    def of(self, name: str) -> dict[str, set[str]]:
        # The one series that Prometheus itself adds.
        return {} if name == "up" else self.labels[name]


def reasons_of(error: type[AccessError]) -> set[str]:
    """The reasons of an error and of all kinds of it; some are counted only once they have occurred."""
    return {error.reason}.union(*map(reasons_of, error.__subclasses__()))


@pytest.fixture
async def exposed(agents: ServingAgents, spawner: Spawner, tmp_path: Path) -> Exposed:
    gateway = Gateway(make_config(tmp_path / "state", WS), TokenStore(tmp_path / "state"), spawner, {})
    async with http_client(gateway) as ann:
        await ann.initialize()
        async with ann.stream() as events:
            await new_session(ann, events)
            response = MetricsExporter(gateway, HandshakeLimiter(gateway.config, gateway.audit)).response()
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(response.body.decode()):
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                values.setdefault(label, set()).add(value)
    return Exposed(found)


# Queries


@pytest.mark.parametrize(("query", "text"), QUERIES)
async def test_a_query_of_the_examples_names_only_series_and_labels_that_the_gateway_exposes(
    query: Query, text: str, exposed: Exposed
) -> None:
    assert query.names
    assert query.names - {"up"} <= exposed.labels.keys()
    for name, matchers in query.selectors:
        known = exposed.of(name)
        for label, operator, value in matchers:
            assert label in known.keys() | TARGET_LABELS
            # The values of these are known from the start; another word would match nothing for ever.
            if label == "how":
                assert set(value.split("|")) <= known[label], operator
            elif label == "reason":
                assert set(value.split("|")) <= known[label] | reasons_of(AccessError), operator
            else:
                assert (operator, value) in (("=~", "$instance"), ("=~", "acp-gateway.*"))
    result = set.intersection(*(set(exposed.of(name)) for name in query.names)) | TARGET_LABELS
    if query.grouping is not None:
        assert query.grouping <= result
        result = set(query.grouping)
    assert set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text)) <= result


@pytest.mark.parametrize(("query", "text"), QUERIES)
def test_a_counter_is_used_by_its_rate_and_a_histogram_by_its_buckets(query: Query, text: str) -> None:
    for name in query.names:
        counted = re.search(rf"\b(rate|increase)\({name}\b", query.text) is not None
        assert counted == name.endswith(("_total", "_bucket")), name
        assert ("histogram_quantile(" in query.text) == name.endswith("_bucket"), name


@pytest.mark.parametrize("text", ["sum(acp_gateway_x)", 'sum by (a, b) (rate(acp_gateway_x{c=~"d"}[5m]))'])
def test_a_query_is_read(text: str) -> None:
    query = parse(text)
    assert query.names == {"acp_gateway_x"}
    assert query.grouping == (frozenset({"a", "b"}) if " by " in text else frozenset())
    assert [matchers for _, matchers in query.selectors] == [(("c", "=~", "d"),) if " by " in text else ()]


def test_a_function_that_is_not_known_is_not_a_series() -> None:
    with pytest.raises(ValueError, match="not a function of the examples"):
        parse("summ(acp_gateway_x)")


# The dashboard


def test_the_dashboard_can_be_imported_beside_others() -> None:
    content = dashboard()
    # An id is the database's of one Grafana; the uid tells dashboards apart.
    assert "id" not in content
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", content["uid"])
    assert isinstance(content["title"], str)
    assert isinstance(content["schemaVersion"], int)
    assert content["schemaVersion"] >= 36
    assert {"from", "to"} == content["time"].keys()


def test_panels_have_ids_of_their_own_and_a_title() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert all(isinstance(number, int) and number > 0 for number in ids)
    assert len(set(ids)) == len(ids) > 5
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    assert all(titles)


def test_panels_are_within_the_grid_and_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place.keys() == {"h", "w", "x", "y"}
        assert place["x"] >= 0
        assert place["w"] > 0
        assert place["h"] > 0
        assert place["x"] + place["w"] <= COLUMNS
        own = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert not own & cells, panel["title"]
        cells |= own
    # Grafana would move a panel up into a gap.
    rows = {y for _, y in cells}
    assert rows == set(range(len(rows)))


def test_panels_are_of_kinds_that_every_grafana_has_with_a_unit_and_queries() -> None:
    for panel in PANELS:
        assert panel["type"] in ("timeseries", "stat"), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in ("short", "s", "Bps", "bytes")
        assert panel["fieldConfig"]["overrides"] == []
        references = [target["refId"] for target in panel["targets"]]
        assert references == [chr(ord("A") + number) for number in range(len(references))]
        assert references
        assert all(target["expr"] and target["legendFormat"] for target in panel["targets"])


def test_panels_and_queries_use_the_data_source_that_the_variable_names() -> None:
    variables = {variable["name"]: variable for variable in dashboard()["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    users = [*PANELS, *(target for panel in PANELS for target in panel["targets"]), variables["instance"]]
    assert all(user["datasource"] == SOURCE for user in users)
    text = (FOLDER / "dashboard.json").read_text()
    assert set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__all"} == variables.keys()
    queried = re.fullmatch(r"label_values\((\w+), instance\)", variables["instance"]["definition"])
    assert queried is not None
    assert queried[1] == "acp_gateway_build_info"
    assert variables["instance"]["query"]["query"] == queried[0]


async def test_the_variable_for_gateways_is_filled_from_a_series_of_each_gateway(exposed: Exposed) -> None:
    source, instance = dashboard()["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert (instance["name"], instance["datasource"]) == ("instance", SOURCE)
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", instance["query"]["query"])
    assert asked is not None
    assert asked[1] in exposed.labels
    assert asked[2] in TARGET_LABELS
    assert instance["definition"] == instance["query"]["query"]


def test_every_query_is_for_the_chosen_gateways() -> None:
    for title, query, _ in dashboard_queries():
        for _, matchers in query.selectors:
            assert ("instance", "=~", "$instance") in matchers, title


# The alerts


def test_alerts_have_a_severity_and_say_what_is_the_matter() -> None:
    found = alerts()
    assert len({alert.name for alert in found}) == len(found) == 6
    for alert in found:
        assert alert.severity in ("info", "warning", "critical")
        assert "          summary: " in alert.annotations


def test_the_alert_for_a_gateway_that_is_down_is_for_the_jobs_of_the_configuration() -> None:
    (down,) = (alert for alert in alerts() if alert.query.names == {"up"})
    ((_, ((label, operator, jobs),)),) = down.query.selectors
    assert (label, operator) == ("job", "=~")
    named = re.findall(r"^  - job_name: (\S+)$", (FOLDER / "prometheus.yml").read_text(), re.MULTILINE)
    assert len(named) == 2
    assert all(re.fullmatch(jobs, name) for name in named)
