"""Lines of `ping` and `doctor`: as text, as JSON, and the exit code of several."""

import pytest

from acp_gateway.diagnosis.checks import exit_code_of, fault, format_seconds, ok, report_of, warning


def test_a_line_has_its_time_or_its_remedy() -> None:
    assert str(ok("port", "it is open", 0.012)) == "ok      port      it is open (12 ms)"
    assert str(fault("port", "it is closed", "open it", 6)) == (
        "fault   port      it is closed\n                  -> open it"
    )


def test_a_line_escapes_what_a_terminal_would_obey() -> None:
    assert "\x1b" not in str(warning("token", "\x1b[2J", "\x1b[3J"))


def test_the_exit_code_is_that_of_the_first_fault() -> None:
    lines = [ok("a", "x"), warning("b", "x", "y"), fault("c", "x", "y", 5), fault("d", "x", "y", 8)]
    assert exit_code_of(lines) == 5
    assert exit_code_of(lines[:2]) == 0


def test_the_report_has_all_lines_and_leaves_out_what_has_no_value() -> None:
    assert report_of([ok("a", "x", 0.00123456), fault("b", "x", "y", 6)], host="box") == {
        "host": "box",
        "ok": False,
        "exitCode": 6,
        "checks": [
            {"name": "a", "status": "ok", "text": "x", "seconds": 0.0012},
            {"name": "b", "status": "fault", "text": "x", "remedy": "y"},
        ],
    }


@pytest.mark.parametrize(("seconds", "shown"), [(0.0004, "0.4 ms"), (0.02, "20 ms"), (1.26, "1.3 s"), (61, "61.0 s")])
def test_a_duration_is_shown_with_two_or_three_digits(seconds: float, shown: str) -> None:
    assert format_seconds(seconds) == shown
