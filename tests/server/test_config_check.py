"""Problems of a configuration that show in its files: they are listed, and `serve` refuses its own."""

import errno
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from acp_gateway.config.load import Config, ListenSection
from acp_gateway.errors import ConfigError
from acp_gateway.security.certificates import create_certificate
from acp_gateway.server.config_check import problems_with_files
from acp_gateway.server.serve import serve
from tests.doubles import make_config
from tests.server.serving import secure, serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

TCP = "tcp://127.0.0.1:0"


def flaws(config: Config) -> list[str]:
    return [f"{finding.severity}: {finding.error}" for finding in problems_with_files(config)]


def test_a_configuration_whose_files_are_as_they_should_be_has_no_flaw(state_dir: Path, token: str) -> None:
    create_certificate(["127.0.0.1"], state_dir)
    secure = ListenSection(url="wss://127.0.0.1:0", cert=state_dir / "cert.pem", key=state_dir / "key.pem")
    config = make_config(state_dir, f"unix://{state_dir}/socket", TCP)
    assert flaws(replace(config, listen=(*config.listen, secure))) == []
    assert flaws(make_config(state_dir / "not" / "yet", TCP)) == []


def test_all_flaws_of_the_files_that_are_named_are_found(state_dir: Path, token: str) -> None:
    (state_dir / "tokens.json").chmod(0o644)
    secure = ListenSection(url="wss://127.0.0.1:0", cert=state_dir / "cert.pem", key=state_dir / "key.pem")
    config = make_config(state_dir, f"unix://{state_dir}/no/socket")
    certificate, folder, tokens = flaws(replace(config, listen=(secure, *config.listen)))
    assert "cert.pem" in certificate
    assert folder == f"error: listen unix://{state_dir}/no/socket: there is no directory {state_dir}/no for the socket"
    assert "others may use it" in tokens


def test_a_key_that_only_the_service_is_given_is_no_flaw_elsewhere(state_dir: Path, token: str) -> None:
    create_certificate(["127.0.0.1"], state_dir)
    key = Path("credential:key.pem")
    secure = ListenSection(url="wss://127.0.0.1:0", cert=state_dir / "cert.pem", key=key)
    assert flaws(replace(make_config(state_dir, TCP), listen=(secure,))) == []


def test_an_authority_for_clients_that_is_none_is_a_flaw(state_dir: Path, token: str) -> None:
    config = secure(state_dir, "wss://127.0.0.1:0")
    (state_dir / "clients.pem").write_text("torn")
    (flaw,) = flaws(replace(config, listen=(replace(config.listen[0], client_ca=state_dir / "clients.pem"),)))
    assert "clients.pem" in flaw


def test_a_state_directory_that_cannot_be_made_is_a_flaw(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (flaw,) = flaws(make_config(tmp_path / "file" / "state", TCP))
    assert flaw.startswith("error: gateway.state_dir: ")
    assert not (tmp_path / "file" / "state").exists()


def test_a_state_directory_that_cannot_be_looked_at_is_a_flaw_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, look = tmp_path / "locked", Path.stat

    def refuse(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if locked in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path, follow_symlinks=follow_symlinks)

    # The mode of a folder does not keep root out.
    monkeypatch.setattr(Path, "stat", refuse)
    (flaw,) = flaws(make_config(locked / "state", TCP))
    assert flaw == f"error: gateway.state_dir: {locked / 'state'} cannot be opened: Permission denied"


async def test_a_state_directory_that_others_may_write_to_is_refused(state_dir: Path, token: str) -> None:
    os.chmod(state_dir, 0o770)  # noqa: S103 - it is what is refused
    flaw = f"gateway.state_dir: other users may replace what is in {state_dir} (mode 0770): chmod 700 {state_dir}"
    assert flaws(make_config(state_dir, TCP)) == [f"error: {flaw}"]
    with pytest.raises(ConfigError) as refused:
        await serve(make_config(state_dir, TCP), {})
    assert str(refused.value) == flaw


@pytest.mark.parametrize("name", ["sessions.db", "sessions.db-wal", "tokens.json"])
async def test_a_state_file_that_is_a_link_is_refused(name: str, state_dir: Path, token: str, tmp_path: Path) -> None:
    (state_dir / name).unlink(missing_ok=True)
    (state_dir / name).symlink_to(tmp_path / "elsewhere")
    flaw = f"{state_dir / name}: is a link, which is not followed: move the file itself here, or remove the link"
    assert f"error: {flaw}" in flaws(make_config(state_dir, TCP))
    with pytest.raises(ConfigError) as refused:
        await serve(make_config(state_dir, TCP), {})
    assert str(refused.value) == flaw
    assert not (tmp_path / "elsewhere").exists()


async def test_two_sections_at_one_address_by_two_names_are_refused(state_dir: Path, token: str) -> None:
    config = make_config(state_dir, "tcp://127.0.0.1:7443", "ws://localhost:7443")
    flaw = "listen: tcp://127.0.0.1:7443 and ws://localhost:7443/acp are the same address: remove one of the sections"
    assert flaws(config) == [f"error: {flaw}"]
    with pytest.raises(ConfigError) as refused:
        await serve(config, {})
    assert str(refused.value) == flaw


async def test_a_second_gateway_on_the_same_state_directory_is_refused(state_dir: Path, token: str) -> None:
    config = make_config(state_dir, TCP)
    async with serving(config):
        with pytest.raises(ConfigError, match=rf"another acp-gateway runs on .* \(process {os.getpid()}\)"):
            await serve(config, {})
        (flaw,) = flaws(config)
        assert flaw.startswith(
            f"warning: gateway.state_dir: an acp-gateway runs on {state_dir} (process {os.getpid()})"
        )
    async with serving(config):
        pass


def test_sessions_of_before_that_cannot_be_read_are_a_flaw_that_a_gateway_can_live_with(
    state_dir: Path, token: str
) -> None:
    database = state_dir / "sessions.db"
    database.write_bytes(b"")
    assert flaws(make_config(state_dir, TCP)) == []
    database.write_bytes(b"SQLite format 2")
    damaged = f"warning: {database}: is damaged; `serve` will put it aside and begin a new one"
    assert flaws(make_config(state_dir, TCP)) == [damaged]
    database.unlink()
    database.mkdir()
    unusable = f"warning: {database}: Is a directory; sessions will not outlive a restart"
    assert flaws(make_config(state_dir, TCP)) == [unusable]


async def test_sessions_that_a_gateway_has_written_are_no_flaw(state_dir: Path, token: str) -> None:
    config = make_config(state_dir, TCP)
    async with serving(config):
        assert [flaw for flaw in flaws(config) if "sessions.db" in flaw] == []
    assert (state_dir / "sessions.db").exists()
    assert flaws(config) == []
