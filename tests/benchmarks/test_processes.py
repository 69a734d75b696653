"""The last words of a server that has ended."""

from pathlib import Path

from benchmarks.processes import last_line


def test_the_last_line_of_a_log_is_the_last_one_with_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("listening\n  +-+---- 1 ----\n    | KeyError: 1\n    +---------\n\n")
    assert last_line(log) == "KeyError: 1"
    log.write_text("\n")
    assert last_line(log) == "no output"
