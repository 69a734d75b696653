"""Problems of a configuration that show in its files: they are listed, and `serve` refuses its own."""

import errno
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import acp_gateway
from acp_gateway.config import load
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.load import Config, ListenSection, load_config
from acp_gateway.config.nodes import NodeSection
from acp_gateway.config.options import CertificateSection
from acp_gateway.errors import ConfigError
from acp_gateway.fence import bubblewrap, landlock
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.token_format import mint
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.config_check import (
    Finding,
    check_config,
    check_credentials,
    check_nodes_of_agents,
    problems_with_files,
)
from acp_gateway.server.serve import serve
from tests.config.test_load import AGENT, LISTEN, LISTEN_TLS, PRESENT_AGENT, Write
from tests.kit.doubles import make_config
from tests.kit.serving import secure, serving

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


def test_a_default_agent_is_of_a_node_of_the_file_or_of_one_that_was_added(state_dir: Path, token: str) -> None:
    config = make_config(state_dir, TCP, default_agent="gpu2/opencode")
    why = (
        "gateway.default_agent: there is no node gpu2: neither [nodes.gpu2], nor one that `acp-gateway nodes add gpu2` "
        "has added"
    )
    assert flaws(config) == [f"error: {why}"]
    with pytest.raises(ConfigError, match="there is no node gpu2"):
        check_nodes_of_agents(config, TokenStore(state_dir))
    for name, expected in (("gpu9", [f"error: {why}"]), ("gpu2", [])):
        TokenStore(state_dir).create("node", f"node {name}", None, role="node", nodes=[name])
        assert flaws(config) == expected
    section = NodeSection(url=parse_target("gpu3"), token_file=state_dir / "t")
    assert flaws(replace(make_config(state_dir, TCP, default_agent="gpu3/x"), nodes={"gpu3": section})) == []


def test_a_certificate_is_for_agents_of_this_machine_of_the_file_or_of_a_node_that_was_added(
    state_dir: Path, token: str
) -> None:
    section = CertificateSection(subject="CN=ann", agents=("demo", "gpu2/opencode"))
    config = replace(make_config(state_dir, TCP), certificates={"ann": section})
    why = "neither [nodes.gpu2], nor one that `acp-gateway nodes add gpu2` has added"
    assert flaws(config) == [f"error: certificates.ann.agents: there is no node gpu2: {why}"]
    TokenStore(state_dir).create("node", "node gpu2", None, role="node", nodes=["gpu2"])
    assert flaws(config) == []


async def test_a_gateway_is_not_started_with_a_default_agent_of_a_node_that_is_not_there(
    state_dir: Path, token: str
) -> None:
    with pytest.raises(ConfigError, match="there is no node gpu2"):
        await serve(make_config(state_dir, TCP, default_agent="gpu2/opencode"), {})


@pytest.mark.parametrize(
    ("content", "mode", "remedy"),
    [("{}", 0o644, "chmod 600 {file}"), ("[", 0o600, "restore it, or remove it and sign in again")],
)
def test_browsers_that_cannot_be_read_are_a_warning_with_the_remedy(
    content: str, mode: int, remedy: str, state_dir: Path, token: str
) -> None:
    file = state_dir / "browsers.json"
    file.write_text(content)
    file.chmod(mode)
    (flaw,) = flaws(make_config(state_dir, TCP))
    assert flaw.startswith(f"warning: {file}: ")
    assert remedy.format(file=file) in flaw
    assert "browsers can't sign in" in flaw


def test_a_key_that_only_the_service_is_given_is_not_a_flaw_elsewhere(state_dir: Path, token: str) -> None:
    create_certificate(["127.0.0.1"], state_dir)
    key = Path("credential:key.pem")
    secure = ListenSection(url="wss://127.0.0.1:0", cert=state_dir / "cert.pem", key=key)
    assert flaws(replace(make_config(state_dir, TCP), listen=(secure,))) == []


def test_an_authority_for_clients_that_is_malformed_is_a_flaw(state_dir: Path, token: str) -> None:
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


async def test_sessions_that_a_gateway_has_written_are_not_a_flaw(state_dir: Path, token: str) -> None:
    config = make_config(state_dir, TCP)
    async with serving(config):
        assert [flaw for flaw in flaws(config) if "sessions.db" in flaw] == []
    assert (state_dir / "sessions.db").exists()
    assert flaws(config) == []


# The text, and the programs and files that it names


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_config(source: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(source)
        return path

    return write_config


def texts(findings: list[Finding], path: Path) -> list[tuple[str, str]]:
    return [(finding.severity, str(finding.error).removeprefix(str(path))) for finding in findings]


def test_all_problems_are_found_at_once_in_the_order_of_the_file(write: Write) -> None:
    path = write(
        '[agents.demo]\ncomand = ["x"]\nenv = { ACP_GATEWAY_X = "1" }\n'
        '[[listen]]\nurl = "ws://0.0.0.0"\n[[listen]]\nurl = "ssh://x"\n[gateway]\nretention_days = "1"\nextra = 1'
    )
    findings = texts(check_config(path), path)
    assert {severity for severity, _ in findings} == {"error"}
    assert [text.split(": ")[:2] for _, text in findings] == [
        [":2", "agents.demo.comand"],
        [":5", "listen[0].url"],
        [":7", "listen[1].url"],
        [":9", "gateway.retention_days"],
        [":10", "gateway.extra"],
    ]


def test_a_file_that_is_not_toml_is_one_finding(write: Write) -> None:
    path = write("[gateway\n")
    ((severity, text),) = texts(check_config(path), path)
    assert (severity, text.startswith(":1: is not valid TOML")) == ("error", True)


def test_an_agent_that_is_complete_has_no_findings(write: Write, tmp_path: Path) -> None:
    (tmp_path / "agent.env").write_text("KEY=value")
    (tmp_path / "agent.env").chmod(0o600)
    (tmp_path / "agent.py").touch()
    assert check_config(write(f'{LISTEN}{PRESENT_AGENT}cwd = "{tmp_path}"\nenv_file = "agent.env"')) == []


def test_a_door_needs_a_token_of_a_gateway(write: Write, tmp_path: Path) -> None:
    (tmp_path / "agent.py").touch()
    path = write(f'{LISTEN}{PRESENT_AGENT}[doors.home]\nurl = "door.example"\ntoken_file = "home.door"\n')
    ((severity, error),) = texts(check_config(path), path)
    assert (severity, "doors.home.token_file" in error) == ("error", True)
    (tmp_path / "home.door").touch(0o600)
    (tmp_path / "home.door").write_text(mint("node"))
    assert check_config(path) == []


def test_nodes_need_no_agents_beside_them_and_a_token_of_a_gateway(write: Write, tmp_path: Path) -> None:
    token = tmp_path / "gpu.token"
    path = write(f'{LISTEN}[nodes.gpu]\nurl = "gpu.example"\ntoken_file = "gpu.token"\n')
    for text, word in ((None, "gpu.token"), ("secret", "token")):
        if text is not None:
            token.touch(0o600)
            token.write_text(text)
        ((severity, error),) = texts(check_config(path), path)
        assert severity == "error"
        assert error.startswith(":5: nodes.gpu.token_file: ")
        assert word in error
        assert "secret" not in error
    token.write_text(mint())
    assert check_config(path) == []


def test_a_command_that_starts_no_acp_agent_is_a_warning_that_names_the_likely_one(
    write: Write, tmp_path: Path
) -> None:
    program = tmp_path / "opencode"
    program.touch(0o755)
    path = write(f'{LISTEN}[agents.demo]\ncommand = ["{program}"]\n')
    assert texts(check_config(path), path) == [
        ("warning", ":4: agents.demo.command: opencode is an ACP agent with: opencode acp")
    ]
    path = write(f'{LISTEN}[agents.demo]\ncommand = ["{program}", "acp"]\n')
    assert check_config(path) == []


def test_an_agent_that_can_not_be_shared_and_is_is_a_warning_with_the_scope(write: Write, tmp_path: Path) -> None:
    program = tmp_path / "pi-acp"
    program.touch(0o755)
    section = f'{LISTEN}[agents.demo]\ncommand = ["{program}"]\n'
    words = 'a session of this agent ends the work of the others in its process: set scope = "connection"'
    path = write(section)
    assert texts(check_config(path), path) == [("warning", f":4: agents.demo.command: {words}")]
    path = write(f'{section}scope = "shared"\n')
    assert texts(check_config(path), path) == [("warning", f":5: agents.demo.scope: {words}")]
    assert check_config(write(f'{section}scope = "connection"\n')) == []


NOWHERE = "on PATH (/nowhere); that of a service is shorter: install it, or name it by its absolute path"


def test_a_command_that_is_not_found_is_a_warning(write: Write) -> None:
    path = write(f"{LISTEN}{AGENT}env = {{ PATH = '/nowhere' }}")
    assert texts(check_config(path), path) == [
        ("warning", f':4: agents.demo.command: no program "demo" is found {NOWHERE}')
    ]


def test_a_command_is_looked_for_in_the_path_of_the_agent(write: Write, tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("#!/bin/sh\n")
    (tmp_path / "demo").chmod(0o700)
    assert check_config(write(f'{LISTEN}{AGENT}env = {{ PATH = "{tmp_path}" }}')) == []


def test_a_relative_command_is_looked_for_in_the_folder_of_the_agent(write: Write, tmp_path: Path) -> None:
    path = write(f'{LISTEN}[agents.demo]\ncommand = ["./demo"]\ncwd = "{tmp_path}"')
    program = tmp_path / "demo"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o600)
    assert [finding.severity for finding in check_config(path)] == ["warning"]
    program.chmod(0o700)
    assert check_config(path) == []


def test_a_hook_s_program_that_is_not_found_is_a_warning(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "notify"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    path = write(
        f'{LISTEN}{PRESENT_AGENT}[hooks]\non_turn_end = ["notify", "x"]\non_permission_waiting = ["{program}"]'
    )
    monkeypatch.setenv("PATH", "/nowhere")
    assert texts(check_config(path), path) == [
        ("warning", f':6: hooks.on_turn_end: no program "notify" is found {NOWHERE}')
    ]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_config(path) == []
    program.unlink()
    assert [finding.severity for finding in check_config(path)] == ["warning", "warning"]


def test_a_relative_program_of_a_hook_is_looked_for_where_the_gateway_is(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notify").write_text("#!/bin/sh\n")
    (tmp_path / "notify").chmod(0o700)
    path = write(f'{LISTEN}{PRESENT_AGENT}[hooks]\non_turn_end = ["./notify"]')
    monkeypatch.chdir("/")
    assert [finding.severity for finding in check_config(path)] == ["warning"]
    monkeypatch.chdir(tmp_path)
    assert check_config(path) == []


def test_a_folder_that_is_missing_is_a_warning(write: Write) -> None:
    path = write(f'{LISTEN}{PRESENT_AGENT}cwd = "/nowhere"')
    assert texts(check_config(path), path) == [
        ("warning", ":5: agents.demo.cwd: there is no folder /nowhere: the agent can't start")
    ]


def test_an_env_file_that_cannot_be_used_is_an_error_of_the_check_only(write: Write, tmp_path: Path) -> None:
    path = write(f'{LISTEN}{PRESENT_AGENT}env_file = "agent.env"')
    assert load_config(path).agents["demo"].env_file == tmp_path / "agent.env"
    (finding,) = check_config(path)
    assert finding.severity == "error"
    assert str(finding.error) == f"{tmp_path / 'agent.env'}: cannot be read: No such file or directory"


def test_a_certificate_that_is_missing_is_an_error_of_the_check_only(write: Write, tmp_path: Path) -> None:
    path = write(LISTEN_TLS + PRESENT_AGENT)
    assert load_config(path).listen[0].cert == tmp_path / "c.pem"
    assert texts(check_config(path), path) == [
        ("error", f":3: listen[0].cert: {tmp_path / 'c.pem'} cannot be read: No such file or directory"),
        ("error", f":4: listen[0].key: {tmp_path / 'k.pem'} cannot be read: No such file or directory"),
    ]


def test_a_credential_that_only_the_service_has_is_a_warning_elsewhere(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        '[[listen]]\nurl = "wss://127.0.0.1:7443"\ncert = "c.pem"\nkey = "credential:k.pem"\n'
        f'{PRESENT_AGENT}env_file = "credential:agent.env"'
    )
    (tmp_path / "c.pem").touch()
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    key, env_file = texts(check_config(path), path)
    assert key[0] == env_file[0] == "warning"
    assert key[1].startswith(':4: listen[0].key: there is no "credential:k.pem" here, because systemd has handed over')
    assert env_file[1].startswith(':7: agents.demo.env_file: there is no "credential:agent.env" here')
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "k.pem").touch(0o440)
    (tmp_path / "agent.env").touch(0o440)
    assert check_config(path) == []


@pytest.mark.parametrize(
    ("section", "options"),
    [
        ('[agents.far]\nurl = "wss://gpu.example"\n', ("token_file", "ca")),
        ('[nodes.gpu]\nurl = "gpu.example"\n', ("token_file", "ca")),
        ('[cluster]\nurl = "rediss://redis.example"\nname = "gpu"\n', ("token_file", "password_file", "ca")),
    ],
)
def test_a_credential_may_be_missing_in_each_option_of_a_gateway_elsewhere(
    section: str, options: tuple[str, ...], write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    known = "".join(f'{option} = "/etc/{option}"\n' for option in options)
    for option in options:
        text = known.replace(f'"/etc/{option}"', '"credential:x"')
        path = write(f'[[listen]]\nurl = "unix:///socket"\n{section}{text}')
        key = section[1 : section.index("]")]
        with pytest.raises(ConfigError, match=rf'^{key}\.{option}: there is no "credential:x" here'):
            check_credentials(load_config(path))
        if option != "ca":
            warning = f': {key}.{option}: there is no "credential:x" here'
            assert any(warning in text for severity, text in texts(check_config(path), path) if severity == "warning")
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
        check_credentials(load_config(path))
        monkeypatch.delenv("CREDENTIALS_DIRECTORY")


def test_a_certificate_given_as_key_is_not_warned_of_as_readable_by_others(write: Write, tmp_path: Path) -> None:
    (tmp_path / "c.pem").touch(0o600)
    (tmp_path / "k.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    path = write(LISTEN_TLS + PRESENT_AGENT)
    assert check_config(path) == []
    (tmp_path / "k.pem").write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN EC PRIVATE KEY-----\n")
    assert [finding.severity for finding in check_config(path)] == ["warning"]


def test_a_key_that_every_user_may_open_is_a_warning(write: Write, tmp_path: Path) -> None:
    for name in ("c.pem", "k.pem"):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(0o644)
    path = write(LISTEN_TLS + PRESENT_AGENT)
    ((severity, text),) = texts(check_config(path), path)
    assert severity == "warning"
    assert text.startswith(":4: listen[0].key: every user of this machine may open it (mode 0644)")
    (tmp_path / "k.pem").chmod(0o640)
    assert check_config(path) == []


def test_a_check_without_any_configuration_is_one_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(load, "SYSTEM_CONFIG", tmp_path / "none")
    (finding,) = check_config(None)
    assert finding.severity == "error"


def test_options_that_are_ignored_are_warnings(write: Write) -> None:
    section = '[cluster]\nurl = "redis://127.0.0.1"\nname = "gpu1"\ntoken_file = "t"\nmirror = true\n'
    findings = [it for it in check_config(write(LISTEN + section)) if "mirror" in (it.error.key or "")]
    assert [(it.severity, it.error.message) for it in findings] == [
        ("warning", "this option is ignored: sessions stay on their node, and nothing of them is in Redis")
    ]


@pytest.mark.parametrize(
    ("root", "told"), [("/nowhere", "there is no folder /nowhere"), ("/etc/passwd", "/etc/passwd is not a folder")]
)
def test_the_root_of_a_workspace_that_is_not_a_folder_is_told(write: Write, root: str, told: str) -> None:
    path = write(f'{LISTEN}{PRESENT_AGENT}[workspaces.p]\nroot = "{root}"')
    assert texts(check_config(path), path) == [("warning", f":6: workspaces.p.root: {told}: no session can use it")]


@pytest.mark.parametrize("option", ["[agents.demo]\ncommand", f"{PRESENT_AGENT}[hooks]\non_turn_end"])
def test_a_tilde_in_a_command_is_told(write: Write, option: str) -> None:
    path = write(f'{LISTEN}{option} = ["python3", "~/x.py"]')
    ((severity, text),) = texts(check_config(path), path)
    assert severity == "warning"
    assert "'~/x.py' is passed as it is, since no shell reads it" in text


@pytest.mark.skipif(landlock.abi() == 0 and bubblewrap.find() is None, reason="there is no fence here")
def test_a_fence_that_keeps_an_agent_from_being_started_is_found(write: Write, tmp_path: Path) -> None:
    def errors(root: str) -> list[str]:
        fence = f'fence = "on"\n[workspaces.work]\nroot = "{root}"\n[hooks]\non_turn_end = ["{tmp_path}/hook/run"]\n'
        path = write(PRESENT_AGENT.rstrip() + "\n" + fence + LISTEN)
        return [str(found.error) for found in check_config(path) if found.severity == "error"]

    for name in ("hook", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "hook/run").touch(mode=0o755)
    assert errors(f"{tmp_path}/work") == []
    (hook,) = errors(f"{tmp_path}/hook")
    assert f"let it write {tmp_path}/hook, and {tmp_path}/hook/run (of the hook on_turn_end) is run or trusted" in hook
    (gateway,) = errors(str(Path(acp_gateway.__file__).parents[1]))
    assert "outside of every fence: keep that elsewhere, or name another folder" in gateway


def test_a_workspace_that_is_the_whole_disk_is_told(write: Write) -> None:
    path = write(f'{LISTEN}{PRESENT_AGENT}[workspaces.p]\nroot = "/"')
    assert texts(check_config(path), path) == [
        ("warning", ":6: workspaces.p.root: this is the whole disk: name a project's folder")
    ]


@pytest.mark.parametrize("value", ["$API_KEY", "${API_KEY}"])
def test_a_variable_that_only_a_shell_would_expand_is_told(write: Write, value: str) -> None:
    path = write(f'{LISTEN}{PRESENT_AGENT}env = {{ API_KEY = "{value}", OTHER = "a$b" }}')
    ((severity, text),) = texts(check_config(path), path)
    assert severity == "warning"
    assert text.startswith(":5: agents.demo.env.API_KEY: is passed as it is: pass_env = ")
