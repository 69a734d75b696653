"""Reports in Markdown and JSON, and the format of figures."""

import json
import math

import pytest

from benchmarks.measuring import Measured, Panel, Section, Target, Unit
from benchmarks.report import Results, as_json, check, figure, markdown, summary, table


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (1_158_000, "/s", "1,158 k/s"),
        (87_234, "/s", "87.2 k/s"),
        (9_996, "/s", "10 k/s"),
        (5_700, "/s", "5,700/s"),
        (60.2, "µs", "60 µs"),
        (7.53, "µs", "7.5 µs"),
        (0.41, "µs", "0.41 µs"),
        (3_489, "µs", "3,489 µs"),
        (31, "ms", "31 ms"),
        (0.2443, "s", "244 ms"),
        (12.34, "s", "12.3 s"),
        (750, "B", "750 B"),
        (999.9, "B", "1 KB"),
        (12_300, "B", "12.3 KB"),
        (45_000_000, "B", "45 MB"),
        (2_500_000_000, "B", "2.5 GB"),
        (0.849, "x", "0.85\N{MULTIPLICATION SIGN}"),
        (9.999, "x", "10\N{MULTIPLICATION SIGN}"),
        (104.4, "x", "104\N{MULTIPLICATION SIGN}"),
        (1234.5, "", "1,234"),
        (0, "µs", "0 µs"),
        (None, "x", "\N{EN DASH}"),
    ],
)
def test_a_figure_has_its_significant_digits_and_unit(value: float | None, unit: Unit, written: str) -> None:
    assert figure(value, unit) == written


def test_a_table_escapes_pipes_in_its_cells() -> None:
    assert table(("subject", "rate"), [("a|b", "1")]) == "| subject | rate |\n|---|---:|\n| a\\|b | 1 |"


STREAM = Section(
    "Streaming",
    ("subject", "1 per write"),
    [("ours", "872 k/s"), ("peer", "35 k/s")],
    notes=["20,000 updates of 200 bytes."],
    targets=[
        Target("over peer", 10, "≥", 24.9),
        Target("over relay", 0.3, "≥", 0.2),
        Target("an idle link", 12_000, "≤", None, "B"),
    ],
    data={"count": 20_000},
    panel=Panel("Throughput", "messages per second", {"1 per write": {"ours": 872_000.0}}),
)


def results(**more: object) -> Results:
    """Return the results of a small run, with `more` attributes replaced."""
    run = Results({"processors": "2", "Python": "3.11.4"}, "make bench", 7, quick=False, sections=[STREAM])
    vars(run).update(more)
    return run


def test_targets_precede_the_sections() -> None:
    before, _, behind = markdown(results()).partition("## Streaming\n")
    assert "| Streaming | over peer | ≥ 10\N{MULTIPLICATION SIGN} | 24.9\N{MULTIPLICATION SIGN} | met |" in before
    assert (
        "| Streaming | over relay | ≥ 0.3\N{MULTIPLICATION SIGN} | 0.20\N{MULTIPLICATION SIGN} | **missed** |" in before
    )
    assert "| Streaming | an idle link | ≤ 12 KB | \N{EN DASH} | not measured |" in before
    assert behind.strip().splitlines()[-1] == "- 20,000 updates of 200 bytes."
    assert "| ours | 872 k/s |" in behind


def test_the_report_begins_with_the_machine_and_the_command() -> None:
    written = markdown(results())
    assert written.startswith("# Benchmark\n\nprocessors 2, Python 3.11.4.\n\nMedians of the rounds (7 unless")
    assert "Repeat the measurement with `make bench`." in written


def test_only_a_quick_run_is_marked_as_quick() -> None:
    assert "A quick run" in markdown(results(quick=True))
    assert "A quick run" not in markdown(results())


def test_failed_tasks_and_skipped_relays_are_listed_with_reasons() -> None:
    written = markdown(results(failed={"soak": "OSError: gone"}, skipped={"websocketd": "there is no apt-get"}))
    assert "## Failed\n\n- soak: OSError: gone\n" in written
    assert "## Skipped\n\n- websocketd: there is no apt-get\n" in written


def test_a_run_without_targets_has_no_table_of_targets() -> None:
    assert "Targets" not in markdown(results(sections=[Section("Soak", ("hour",), [("1",)])]))


def test_a_run_is_complete_if_nothing_failed() -> None:
    assert results(skipped={"socat": "none"}).complete
    assert not results(failed={"soak": "gone"}).complete
    assert not results(measured=[Measured("stream", ["peer"], failed={"peer": "gone"})]).complete


def test_the_summary_counts_missed_targets_and_names_failures() -> None:
    measured = [Measured("trips", ["peer"], failed={"peer": "gone"})]
    assert summary(results(sections=[STREAM], failed={"soak": "OSError"}, measured=measured)) == [
        "failed: soak: OSError",
        "failed: trips, peer: gone",
        "1 of 3 targets missed; Streaming: over relay",
    ]
    assert summary(results(sections=[])) == []


def test_only_a_failure_changes_the_exit_status() -> None:
    missed = results(sections=[STREAM])
    assert any(target.met is False for target in STREAM.targets)
    assert missed.exit_status == 0
    assert results(failed={"soak": "gone"}).exit_status == 2


def test_the_json_has_the_raw_values_of_each_round() -> None:
    rounds = [{"ours": {"rate": 1.5}}, {"ours": {"rate": 2.5}}]
    written = json.loads(as_json(results(measured=[Measured("stream", ["ours"], rounds)])))
    assert written["measured"] == [{"task": "stream", "subjects": ["ours"], "rounds": rounds, "failed": {}}]


def test_the_json_has_targets_with_their_verdicts_and_the_data_of_tasks() -> None:
    (section,) = json.loads(as_json(results()))["sections"]
    assert [target["met"] for target in section["targets"]] == [True, False, None]
    assert section["targets"][1]["measured"] == 0.2
    assert (section["data"], section["rows"][0]) == ({"count": 20_000}, ["ours", "872 k/s"])


def test_the_json_has_the_duration_of_each_task() -> None:
    assert json.loads(as_json(results(seconds={"stream": 12.3})))["seconds"] == {"stream": 12.3}


@pytest.mark.parametrize("data", [math.nan, object()])
def test_check_refuses_a_section_that_is_not_serializable(data: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        check(Section("Soak", ("hour",), [("1",)], data=data))
