"""The command `token cluster`."""

import stat
from pathlib import Path

from click.testing import CliRunner

from acp_gateway.cli.main import main
from acp_gateway.security.token_format import explain_flaw, read_token_file


def test_token_cluster_prints_another_token_each_time() -> None:
    printed = [CliRunner().invoke(main, ["token", "cluster"]).output.strip() for _ in range(2)]
    assert [explain_flaw(text) for text in printed] == [None, None]
    assert printed[0] != printed[1]


def test_token_cluster_output_is_a_new_file_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "cluster.token"
    assert CliRunner().invoke(main, ["token", "cluster", "--output", str(file)]).output == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = read_token_file(file)
    again = CliRunner().invoke(main, ["token", "cluster", "--output", str(file)])
    assert again.exit_code != 0
    assert read_token_file(file) == secret


def test_token_cluster_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["token", "cluster", "--output", str(tmp_path / "none" / "t")])
    assert result.exit_code != 0
