import math
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from acp_gateway.config import load as config
from acp_gateway.config.addresses import parse_address
from acp_gateway.config.load import (
    AgentSection,
    Config,
    HooksSection,
    ListenSection,
    agent_environment,
    default_config_path,
    inherited_environment,
    load_config,
)
from acp_gateway.errors import ConfigError

LISTEN = '[[listen]]\nurl = "tcp://127.0.0.1:7443"\n'
AGENT = '[agents.demo]\ncommand = ["demo"]\n'
LISTENING = '[agents.demo]\nurl = "tcp://127.0.0.1:3000"\n'
LISTEN_TLS = '[[listen]]\nurl = "wss://127.0.0.1:7443"\ncert = "c.pem"\nkey = "k.pem"\n'
PRESENT_AGENT = f'[agents.demo]\ncommand = ["{sys.executable}", "agent.py"]\n'

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_config(source: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(source)
        return path

    return write_config


def error_of(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value).removeprefix(str(path))


def load(path: Path) -> Config:
    return load_config(path)


def test_a_whole_configuration_is_read_into_its_structs(write: Write, tmp_path: Path) -> None:
    path = write(
        """
        [gateway]
        state_dir = "/var/lib/acp-gateway"
        default_agent = "two"
        memory_limit = 2
        away_grace = "never"
        journal_storage = "memory"
        retention_days = 8
        [limits]
        max_connections = 1
        [[listen]]
        url = "wss://0.0.0.0:7443"
        cert = "tls/cert.pem"
        key = "/etc/key.pem"
        allowed_origins = ["https://editor.example", "vscode-webview://abc"]
        [[listen]]
        url = "unix:///run/acp/socket"
        local_user = false
        [agents.one]
        command = ["./agent", "", "--flag"]
        cwd = "/srv"
        env = { A = "1" }
        pass_env = ["KEY"]
        env_file = "one.env"
        scope = "connection"
        idle_timeout = "never"
        permission_timeout = 60
        login = "one login"
        client_fs = true
        client_terminal = true
        [agents.two]
        command = ["two"]
        [hooks]
        on_permission_waiting = ["notify", "--urgent"]
        on_turn_end = ["notify"]
        """
    )
    read = load_config(path)
    assert read.gateway.state_dir == Path("/var/lib/acp-gateway")
    gateway = read.gateway
    assert (gateway.memory_limit, gateway.away_grace, read.limits.max_connections) == (2, math.inf, 1)
    assert (gateway.journal_storage, gateway.retention_days) == ("memory", 8)
    assert read.default_agent == "two"
    wss, unix = read.listen
    assert (wss.cert, wss.key) == (tmp_path / "tls/cert.pem", Path("/etc/key.pem"))
    assert wss.allowed_origins == ("https://editor.example", "vscode-webview://abc")
    assert (unix.address.path, unix.local_user) == ("/run/acp/socket", False)
    assert read.agents["one"] == AgentSection(
        command=("./agent", "", "--flag"),
        cwd=Path("/srv"),
        env={"A": "1"},
        pass_env=("KEY",),
        env_file=tmp_path / "one.env",
        scope="connection",
        idle_timeout=math.inf,
        permission_timeout=60.0,
        login="one login",
        client_fs=True,
        client_terminal=True,
    )
    assert read.agents["two"] == AgentSection(command=("two",))
    assert read.hooks == HooksSection(
        on_permission_waiting=("notify", "--urgent"), on_turn_end=("notify",), timeout=30.0
    )


def test_no_program_is_run_that_was_not_asked_for(write: Write) -> None:
    hooks = load_config(write(LISTEN + AGENT)).hooks
    assert (hooks.on_permission_waiting, hooks.on_turn_end) == (None, None)


@pytest.mark.parametrize("journal", ["disk", "memory"])
def test_a_history_is_on_disk_or_in_memory(journal: str, write: Write) -> None:
    assert load(write(f'{LISTEN}{AGENT}[gateway]\njournal_storage = "{journal}"')).gateway.journal_storage == journal


@pytest.mark.parametrize("scope", ["identity", "connection", "shared"])
def test_an_agent_has_one_of_three_scopes(scope: str, write: Write) -> None:
    assert load(write(f'{LISTEN}{AGENT}scope = "{scope}"')).agents["demo"].scope == scope


def test_the_only_agent_is_the_default(write: Write) -> None:
    assert load_config(write(LISTEN + AGENT)).default_agent == "demo"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (AGENT, ": listen: at least one [[listen]] section with a url is needed"),
        ("listen = []\n" + AGENT, ":1: listen: at least one [[listen]] section with a url is needed"),
        ('[listen]\nurl = "tcp://127.0.0.1"\n' + AGENT, ":1: listen: the header of a listener has two brackets"),
        ("listen = [1]\n" + AGENT, ":1: listen[0]: expected a section, found a whole number: write [[listen]], "),
        ("[hosts.box]\nurl = 'box'\n" + LISTEN + AGENT, ":1: hosts: unknown option: gateways and path maps are in"),
        ("url = 'wss://x'\n" + LISTEN + AGENT, ":1: url: unknown option: it belongs below the header [[listen]]"),
        (LISTEN + AGENT + "[workspaces.p]\npath = '/srv'", ':6: workspaces.p.path: unknown option: use "root"'),
        (
            LISTEN + "[agents.gpt.5]\ncommand = ['x']",
            ':3: agents.gpt.5: unknown option: a name with a dot has quotes, [agents."gpt.5"]',
        ),
        ('listen = "tcp://127.0.0.1"\n' + AGENT, ":1: listen: a listener is a section: write [[listen]], and below"),
        ("[[agents]]\nname = 'x'\n" + LISTEN, ":1: agents: the header of an agent has one pair of brackets"),
        ("[workspaces]\np = '/srv'\n" + LISTEN + AGENT, ":2: workspaces.p: expected a section, found a string: "),
        (
            "[[listen]]\nport = 7443\n" + AGENT,
            ':2: listen[0].port: unknown option: it is part of url = "wss://0.0.0.0:7443"',
        ),
        (
            LISTEN + AGENT + 'args = ["acp"]',
            ":5: agents.demo.args: unknown option: the arguments are words of command, behind the program",
        ),
        (LISTEN, ": agents: at least one [agents.NAME] section is needed, such as [agents.opencode] with "),
        (
            "agents = 1\n" + LISTEN,
            ":1: agents: at least one [agents.NAME] section is needed, such as [agents.opencode] with ",
        ),
        ("agents = { demo = 1 }\n" + LISTEN, ":1: agents.demo: expected a section, found a whole number: "),
        ("gateway = 1\n" + LISTEN + AGENT, ":1: gateway: expected a table, found a whole number"),
        ("[agent]\n" + LISTEN + AGENT, ':1: agent: unknown option; did you mean "agents"?'),
        (
            "[gateway]\naway_grce = 1\n" + LISTEN + AGENT,
            ':2: gateway.away_grce: unknown option; did you mean "away_grace"?',
        ),
        ("[[listen]]\n" + AGENT, ":1: listen[0].url: this option is required"),
        ("[[listen]]\nurl = 7443\n" + AGENT, ":2: listen[0].url: expected a URL, found a whole number"),
        ("[agents.demo]\n" + LISTEN, ":1: agents.demo.command: this option is required, or url"),
        (
            LISTEN + AGENT + 'url = "tcp://127.0.0.1:1"',
            ":5: agents.demo.url: an agent has a command or a url, not both",
        ),
        (LISTEN + AGENT + 'token_file = "t"', ":5: agents.demo.token_file: is for an agent with a url"),
        (
            LISTEN + AGENT + "insecure_plaintext = true",
            ":5: agents.demo.insecure_plaintext: is for an agent with a url",
        ),
        (LISTEN + LISTENING + 'env = { A = "b" }', ":5: agents.demo.env: is for an agent with a command"),
        (LISTEN + LISTENING + "pass_env = []", ":5: agents.demo.pass_env: is for an agent with a command"),
        (
            LISTEN + LISTENING + 'token_file = "t"',
            ":5: agents.demo.token_file: is for WebSocket and HTTP; tcp has no place",
        ),
        (
            LISTEN + LISTENING + 'far_agent = "x"',
            ":5: agents.demo.far_agent: is for WebSocket and HTTP; tcp has no place",
        ),
        (LISTEN + LISTENING + 'ca = "ca.pem"', ":5: agents.demo.ca: is for TLS, and tcp has none"),
        (LISTEN + LISTENING + f'pin = "sha256:{"0" * 64}"', ":5: agents.demo.pin: is for TLS, and tcp has none"),
        (LISTEN + LISTENING.replace("127.0.0.1", "box"), ":4: agents.demo.url: the network could read tokens and code"),
        (LISTEN + LISTENING.replace("tcp", "ftp"), ":4: agents.demo.url: the address"),
        (LISTEN + LISTENING.replace("tcp", "ssh"), ":4: agents.demo.url: no agent listens at ssh"),
        (LISTEN + LISTENING.replace("tcp://", ""), ":4: agents.demo.url: expected a URL, such as"),
        (LISTEN + '[agents."my agent"]\ncommand = ["x"]', ':3: agents."my agent": a name is 1 to 64 letters'),
        (LISTEN + AGENT + "[gateway]\nstate_dir = 'here'", ":6: gateway.state_dir: expected an absolute path"),
        (LISTEN + AGENT + "cwd = 'here'", ":5: agents.demo.cwd: expected an absolute path"),
        (
            LISTEN + AGENT + "scope = 'user'",
            ':5: agents.demo.scope: expected "identity", "connection" or "shared", found "user"',
        ),
        (
            LISTEN + AGENT + "scope = 'identiy'",
            (
                ':5: agents.demo.scope: expected "identity", "connection" or "shared", found "identiy"; did you mean '
                '"identity"?'
            ),
        ),
        (
            LISTEN + AGENT + "scope = []",
            ':5: agents.demo.scope: expected "identity", "connection" or "shared", found an',
        ),
        (
            LISTEN + AGENT + "idle_timeout = 'ever'",
            ":5: agents.demo.idle_timeout: expected a number of seconds above 0, or a",
        ),
        (
            LISTEN + AGENT + "[gateway]\njournal_storage = 'none'",
            ':6: gateway.journal_storage: expected "disk" or "memory"',
        ),
        (
            LISTEN + AGENT + "[gateway]\njournal_storage = 'dsk'",
            ':6: gateway.journal_storage: expected "disk" or "memory", found "dsk"; did you mean "disk"?',
        ),
        (
            LISTEN + AGENT + "mcp_servers = 'alow'",
            (
                ':5: agents.demo.mcp_servers: expected "drop", "deny", "allow", "share" or an array of the names '
                'that are allowed, found "alow"; did you mean "allow"?'
            ),
        ),
        (
            LISTEN + AGENT + "[gateway]\njournal_storage = true",
            ':6: gateway.journal_storage: expected "disk" or "memory"',
        ),
        (
            LISTEN + AGENT + "[gateway]\nretention_days = 0",
            ":6: gateway.retention_days: expected a whole number above 0",
        ),
        ("hooks = 1\n" + LISTEN + AGENT, ":1: hooks: expected a table, found a whole number"),
        (LISTEN + AGENT + "[hooks]\non_turn_end = []", ":6: hooks.on_turn_end: expected the program and its arguments"),
        (LISTEN + AGENT + "[hooks]\non_turn_end = 'x'", ":6: hooks.on_turn_end: expected an array of strings"),
        (LISTEN + AGENT + "[log]\nformat = 'jso'", ':6: log.format: expected "text" or "json", found "jso"'),
        (
            LISTEN + AGENT + "[hooks]\non_turn_ends = ['x']",
            ':6: hooks.on_turn_ends: unknown option; did you mean "on_turn_end"?',
        ),
        (LISTEN + AGENT + "login = ''", ":5: agents.demo.login: expected a string that is not empty"),
        (LISTEN + AGENT + "idle_stop = 60", ":5: agents.demo.idle_stop: this option was renamed: use idle_timeout"),
        (
            LISTEN + AGENT + "[gateway]\njournal = 'disk'",
            ":6: gateway.journal: this option was renamed: use journal_storage",
        ),
        (
            AGENT + '[[listen]]\nurl = "unix:///s"\npeer_uid = true',
            ":5: listen[0].peer_uid: this option was renamed: use local_user",
        ),
        (
            AGENT + '[[listen]]\nurl = "tcp+tls://[::1]:1"\ncert = "c"\nkey = "k"\nlocal_user = true',
            ":7: listen[0].local_user: is for unix, and for ws and tcp on loopback, ",
        ),
        (
            AGENT + '[[listen]]\nurl = "ws://192.0.2.1:1"\ninsecure_plaintext = true\nlocal_user = true',
            ":6: listen[0].local_user: is for unix, and for ws and tcp on loopback, ",
        ),
        (
            AGENT + '[[listen]]\nurl = "ws://[::1]:1"\nlocal_user = true\npublic_url = "https://a.example"',
            ":5: listen[0].local_user: behind a public_url is a proxy, ",
        ),
        (
            AGENT + '[[listen]]\nurl = "ws://127.0.0.1:1"\npath = "/message?agent=demi"',
            ':5: listen[0].path: there is no [agents.demi]; did you mean "demo"?',
        ),
        (
            AGENT + '[[listen]]\nurl = "ws://127.0.0.1:1"\nserves = ["chat"]\npath = "/message"\n' + LISTEN,
            ':6: listen[0].path: is a path of "acp"',
        ),
        (
            AGENT + '[[listen]]\nurl = "ws://127.0.0.1:1"\nserves = ["ahp"]\nlocal_user = true\n' + LISTEN,
            ":6: listen[0].local_user: each client shows a token where the token is in the query",
        ),
        (
            AGENT + '[[listen]]\nurl = "ws://192.0.2.1:1"\nserves = ["ahp"]\ninsecure_plaintext = true\n' + LISTEN,
            ":4: listen[0].url: the network could read a token in the query: only wss:// leads off this machine",
        ),
        (
            AGENT + '[[listen]]\nurl = "ws://127.0.0.1:1"\nserves = ["ahp", "chat"]\n' + LISTEN,
            ':5: listen[0].serves: "ahp" needs "acp" beside it: else it is alone, for windows of VS Code',
        ),
        (
            AGENT + '[[listen]]\nurl = "tcp://127.0.0.1:1"\nserves = ["ahp"]\n' + LISTEN,
            ":5: listen[0].serves: is for ws and wss",
        ),
    ],
)
def test_what_is_wrong_with_a_section_is_said_with_its_line(source: str, error: str, write: Write) -> None:
    assert error_of(write(source)).startswith(error)


@pytest.mark.parametrize(
    ("url", "given", "accepts"),
    [
        ("unix:///s", "", True),
        ("unix:///s", "local_user = false", False),
        ("ws://localhost:1", "", False),
        ("ws://localhost:1", "local_user = true", True),
        ("tcp://[::1]:1", "", False),
        ("tcp://[::1]:1", "local_user = true", True),
    ],
)
def test_local_user_is_the_default_at_a_unix_socket_alone(url: str, given: str, accepts: bool, write: Write) -> None:
    (section,) = load_config(write(f'{AGENT}[[listen]]\nurl = "{url}"\n{given}')).listen
    assert section.accepts_local_user == accepts


@pytest.mark.parametrize(
    ("path", "agent"), [("/message", None), ("/a/b-1", None), ("/acp2", None), ("/message?agent=demo", "demo")]
)
def test_a_path_of_the_endpoint_may_name_an_agent(path: str, agent: str | None, write: Write) -> None:
    (section,) = load_config(write(f'{AGENT}[[listen]]\nurl = "ws://127.0.0.1:1"\npath = "{path}"')).listen
    assert (section.path, section.path_agent) == (path, agent)


@pytest.mark.parametrize("path", ["", "/", "message", "/m/", "//m", "/m?session=1", "/m?agent=", "/m#f", "/m m", "/é"])
def test_a_path_of_the_endpoint_has_nothing_else(path: str, write: Write) -> None:
    error = error_of(write(f'{AGENT}[[listen]]\nurl = "ws://127.0.0.1:1"\npath = "{path}"'))
    assert error.startswith(":5: listen[0].path: expected a path, ")


@pytest.mark.parametrize("path", ["/acp", "/acp/sendMessage", "/ws?agent=demo", "/assets/x"])
def test_a_path_of_the_gateway_can_not_be_that_of_the_endpoint(path: str, write: Write) -> None:
    error = error_of(write(f'{AGENT}[[listen]]\nurl = "ws://127.0.0.1:1"\npath = "{path}"'))
    assert error.startswith(":5: listen[0].path: the gateway has a path of its own there: /")


@pytest.mark.parametrize(
    "command", ['"demo --acp"', "[]", '[""]', "[1]", '["demo", 1]', '["demo", "\\u0000"]', "[[]]", "{}"]
)
def test_a_command_is_a_program_and_its_arguments(command: str, write: Write) -> None:
    assert error_of(write(f"{LISTEN}[agents.demo]\ncommand = {command}")).startswith(
        ":4: agents.demo.command: expected"
    )


def test_a_url_that_cannot_be_read_is_an_error_without_the_token_in_it(write: Write) -> None:
    error = error_of(write('[[listen]]\nurl = "wss://secret@box"\n' + AGENT))
    assert error.startswith(":2: listen[0].url: the address 'wss://…@box' has user information")


@pytest.mark.parametrize("url", ["ws://0.0.0.0:80", "tcp://box.example:7443", "tcp://[::]:7443", "ws://10.0.0.1"])
def test_plaintext_off_loopback_is_refused_unless_it_was_asked_for(url: str, write: Write) -> None:
    source = f'{AGENT}[[listen]]\nurl = "{url}"\n'
    error = error_of(write(source))
    assert error.startswith(":4: listen[0].url: the network could read tokens and code: use ")
    assert ("wss://" if url.startswith("ws") else "tcp+tls://") in error
    assert "insecure_plaintext = true" in error
    assert load(write(source + "insecure_plaintext = true")).listen[0].url == url


@pytest.mark.parametrize("url", ["ws://127.0.0.1:80", "tcp://[::1]:7443", "ws://localhost", "unix:///run/socket"])
def test_plaintext_that_stays_on_this_machine_is_fine(url: str, write: Write) -> None:
    assert load(write(f'{AGENT}[[listen]]\nurl = "{url}"\n')).listen[0].url == url


@pytest.mark.parametrize(
    ("url", "more", "services"),
    [
        ("wss://0.0.0.0:1", 'cert = "c"\nkey = "k"', ("acp", "page", "ports", "ahp")),
        ("https://0.0.0.0:1", 'cert = "c"\nkey = "k"', ("acp", "page", "ports", "ahp")),
        ("ws://127.0.0.1:1", "", ("acp", "page", "ports", "ahp")),
        ("http://localhost:1", "", ("acp", "page", "ports", "ahp")),
        ("ws://0.0.0.0:1", "insecure_plaintext = true", ("acp",)),
        ("tcp://127.0.0.1:1", "", ("acp",)),
        ("unix:///s", "", ("acp",)),
        ("ws://127.0.0.1:1", 'serves = ["metrics", "acp"]', ("metrics", "acp")),
        ("ws://127.0.0.1:1", 'serves = ["acp", "chat"]', ("acp", "chat")),
        ("ws://0.0.0.0:1", 'serves = ["acp", "page"]\ninsecure_plaintext = true', ("acp", "page")),
    ],
)
def test_a_listener_serves_acp_and_on_loopback_or_over_tls_the_page_unless_serves_says_otherwise(
    url: str, more: str, services: tuple[str, ...], write: Write
) -> None:
    (listener,) = load_config(write(f'{AGENT}[[listen]]\nurl = "{url}"\n{more}')).listen
    assert listener.services == services


def test_one_listener_at_least_serves_acp(write: Write) -> None:
    metrics = '[[listen]]\nurl = "http://127.0.0.1:9464"\nserves = ["metrics"]\n'
    assert (
        error_of(write(AGENT + metrics)) == ':3: listen: no [[listen]] section serves "acp", so no client can connect'
    )
    assert len(load(write(AGENT + metrics + LISTEN)).listen) == 2
    assert error_of(write(AGENT + metrics + LISTEN.replace("tcp:", "tpc:"))).startswith(":7: listen[1].url")


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:37842", "unix:///run/editor"])
def test_editors_are_served_where_there_are_paths(url: str, write: Write) -> None:
    served = '[[listen]]\nurl = "ws://127.0.0.1:37842"\nserves = ["editor"]\n'
    assert load(write(AGENT + served + LISTEN)).listen[0].services == ("editor",)
    assert 'no [[listen]] section serves "acp"' in error_of(write(AGENT + served))
    elsewhere = served.replace("ws://127.0.0.1:37842", url)
    assert ":5: listen[0].serves: is for ws and wss" in error_of(write(AGENT + elsewhere + LISTEN))


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:17320", "unix:///run/tap"])
def test_the_tap_has_an_address_of_its_own_without_http(url: str, write: Write) -> None:
    tap = f'[[listen]]\nurl = "{url}"\nserves = ["tap"]\n'
    section = load(write(AGENT + tap + LISTEN)).listen[0]
    assert (section.services, section.speaks_http) == (("tap",), False)
    assert 'no [[listen]] section serves "acp"' in error_of(write(AGENT + tap))
    over_http = tap.replace(url, "ws://127.0.0.1:17320")
    assert error_of(write(AGENT + over_http + LISTEN)).startswith(
        ':5: listen[0].serves: "tap" is for tcp, tcp+tls and unix: it sends lines, and has no path'
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ws://127.0.0.1:9464", "http://127.0.0.1:9464/metrics"),
        ("http://127.0.0.1:9464/metrics", "http://127.0.0.1:9464/metrics"),
        ("wss://box:9464", "https://box:9464/metrics"),
        ("unix:///run/metrics", "unix:///run/metrics"),
    ],
)
def test_the_address_of_metrics_alone_has_their_path(url: str, shown: str) -> None:
    section = ListenSection(url=url, serves=("metrics",))
    assert str(section.address) == shown
    assert (section.services, section.speaks_http) == (("metrics",), True)
    assert section.address.tls == url.startswith("wss:")


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_the_address_of_chat_alone_has_its_path(scheme: str) -> None:
    assert str(ListenSection(url=f"{scheme}://box:3001", serves=("chat",)).address) == f"{scheme}://box:3001/chat"
    assert str(ListenSection(url=f"{scheme}://box:1", serves=("acp", "chat")).address) == f"{scheme}://box:1/acp"


@pytest.mark.parametrize("scheme", ["wss", "tcp+tls"])
@pytest.mark.parametrize(("given", "missing"), [("cert", "key"), ("key", "cert")])
def test_tls_needs_certificate_and_key(scheme: str, given: str, missing: str, write: Write) -> None:
    error = error_of(write(f'{AGENT}[[listen]]\nurl = "{scheme}://127.0.0.1:1"\n{given} = "file.pem"'))
    assert error == (f':4: listen[0].url: {scheme} needs "{missing}": make a pair with "acp-gateway certs create"')


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("ws://127.0.0.1:1", 'cert = "x"'),
        ("tcp://127.0.0.1:1", 'key = "x"'),
        ("unix:///s", 'cert = "x"'),
        ("tcp://127.0.0.1:1", 'serves = ["acp"]'),
        ("tcp://127.0.0.1:1", 'serves = ["metrics"]'),
        ("tcp://127.0.0.1:1", 'serves = ["chat"]'),
        ("unix:///s", 'serves = ["acp"]'),
        ("unix:///s", 'serves = ["acp", "metrics"]'),
        ("tcp://127.0.0.1:1", 'path = "/message"'),
        ("tcp://127.0.0.1:1", "allowed_origins = []"),
        ("unix:///s", 'allowed_origins = ["https://a.example"]'),
        ("tcp://127.0.0.1:1", 'public_url = "https://a.example"'),
        ("tcp://127.0.0.1:1", 'preview_url = "https://*.a.example"'),
    ],
)
def test_an_option_on_a_listener_that_has_no_use_for_it_is_an_error(url: str, option: str, write: Write) -> None:
    error = error_of(write(f'{AGENT}[[listen]]\nurl = "{url}"\n{option}'))
    name, scheme = option.partition(" ")[0], url.partition(":")[0]
    assert error.startswith(f":5: listen[0].{name}: is for ")
    assert error.endswith(f"this listener is {scheme}")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("tcp://127.0.0.1:7443", "tcp://127.0.0.1:7443"),
        ("tcp://127.0.0.1", "ws://127.0.0.1:7443"),
        ("unix:///s", "unix:///s"),
        ("unix:///a/../s", "unix:///s"),
        ("tcp+tls://0.0.0.0:7443", "ws://127.0.0.1:7443"),
        ("ws://127.0.0.1:7443", "ws://0.0.0.0:7443"),
        ("ws://127.0.0.1:7443", "http://127.0.0.1:7443"),
        ("ws://[::]:7443", "tcp://[::1]:7443"),
        ("ws://localhost:7443", "tcp://localhost:7443"),
    ],
)
def test_two_listeners_cannot_be_at_the_same_place(first: str, second: str, write: Write) -> None:
    def options(url: str) -> str:
        tls = '\ncert = "c"\nkey = "k"' if "tls" in url else ""
        return f"\ninsecure_plaintext = true{tls}" if "//0." in url or "::" in url else tls

    error = error_of(write("".join(f'[[listen]]\nurl = "{url}"{options(url)}\n' for url in (first, second)) + AGENT))
    assert error.endswith(f": listen[1].url: listen[0], {parse_address(first)}, listens there already")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"),
        ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"),
        ("tcp://127.0.0.1:1", "tcp://[::1]:1"),
        ("unix:///s", "unix:///t"),
        ("unix:///s", "tcp://127.0.0.1:1"),
    ],
)
def test_listeners_at_different_places_or_any_free_port_are_fine(first: str, second: str, write: Write) -> None:
    path = write(f'{AGENT}[[listen]]\nurl = "{first}"\n[[listen]]\nurl = "{second}"')
    assert [listener.url for listener in load(path).listen] == [first, second]


def test_the_default_agent_must_exist(write: Write) -> None:
    assert error_of(write(f'[gateway]\ndefault_agent = "demmo"\n{LISTEN}{AGENT}')) == (
        ':2: gateway.default_agent: there is no agent "demmo"; did you mean "demo"?'
    )
    assert error_of(write(f'[gateway]\ndefault_agent = "zzz"\n{LISTEN}{AGENT}')) == (
        ':2: gateway.default_agent: there is no agent "zzz"; there are: demo'
    )


def test_with_several_agents_one_must_be_the_default(write: Write) -> None:
    error = error_of(write(f'{LISTEN}{AGENT}[agents.other]\ncommand = ["x"]'))
    assert error == (
        ': gateway.default_agent: with several agents, [gateway] names the default one, as default_agent = "demo": '
        "demo, other"
    )


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ('env = { ACP_GATEWAY_TOKEN = "secret" }', "env.ACP_GATEWAY_TOKEN"),
        ('pass_env = ["OK", "ACP_GATEWAY_TOKEN"]', "pass_env[1]"),
    ],
)
def test_the_gateway_s_own_variables_cannot_be_given_to_an_agent(option: str, key: str, write: Write) -> None:
    assert error_of(write(f"{LISTEN}{AGENT}{option}")) == (
        f":5: agents.demo.{key}: variables that begin with ACP_GATEWAY_ are the gateway's own"
    )


@pytest.mark.parametrize("option", ['env = { "" = "x" }', 'env = { "A=B" = "x" }', 'pass_env = ["A=B"]'])
def test_what_cannot_be_the_name_of_a_variable_is_refused(option: str, write: Write) -> None:
    assert error_of(write(f"{LISTEN}{AGENT}{option}")).endswith("this cannot be the name of a variable")


@pytest.mark.parametrize("named", [True, False])
def test_on_a_laptop_it_is_said_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(config, "SYSTEM_CONFIG", tmp_path / "none.toml")
    (tmp_path / "acp-gateway").mkdir()
    if named:
        (tmp_path / "acp-gateway/hosts.toml").touch()
    with pytest.raises(ConfigError) as caught:
        load_config(None)
    assert ("this command runs on the gateway's machine" in str(caught.value)) == named
    assert "`acp-gateway up` in a project's folder makes one" in str(caught.value)


def test_an_unknown_option_is_told_before_the_one_that_is_missing_because_of_it(write: Write) -> None:
    path = write('[[listen]]\nurll = "tcp://127.0.0.1"\n' + AGENT)
    assert error_of(path) == (
        ':2: listen[0].urll: unknown option; did you mean "url"? '
        f"(`acp-gateway check-config --config {shlex.quote(str(path))}` lists all 2 problems)"
    )


def test_what_lists_all_problems_needs_no_path_where_the_file_is_the_default(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write('[[listen]]\nurll = "tcp://127.0.0.1"\n' + AGENT)
    monkeypatch.setattr(config, "default_config_path", lambda: path)
    with pytest.raises(ConfigError, match=r"\(`acp-gateway check-config` lists all 2 problems\)"):
        load_config(None)


def test_without_any_configuration_it_is_that_of_a_gateway_without_a_file_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(config, "SYSTEM_CONFIG", tmp_path / "absent")
    running = tmp_path / ".local/state/acp-gateway" / config.RUNNING_CONFIG
    running.parent.mkdir(parents=True)
    running.touch()
    assert default_config_path() == running
    with pytest.raises(ConfigError, match="`acp-gateway up` in a project's folder makes one"):
        default_config_path(or_running=False)
    (tmp_path / ".config/acp-gateway").mkdir(parents=True)
    (tmp_path / ".config/acp-gateway/config.toml").touch()
    assert default_config_path() != running


def test_a_single_problem_is_told_without_another_command(write: Write) -> None:
    assert "check-config" not in error_of(write(LISTEN + AGENT + "scop = 1"))


def test_without_a_path_the_user_s_configuration_goes_before_the_system_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, system = tmp_path / "acp-gateway/config.toml", tmp_path / "system.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(config, "SYSTEM_CONFIG", system)
    with pytest.raises(ConfigError, match=f"there is no {user} and no {system}: `acp-gateway up` in a project's"):
        default_config_path()
    system.write_text(LISTEN + AGENT)
    assert default_config_path() == system
    assert load_config(None).default_agent == "demo"
    user.parent.mkdir()
    user.write_text("")
    assert default_config_path() == user


def test_without_any_home_folder_there_is_still_the_system_s_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "system.toml"
    system.write_text(LISTEN + AGENT)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda text: text)
    monkeypatch.setattr(config, "SYSTEM_CONFIG", system)
    assert default_config_path() == system


def test_a_configuration_under_something_that_is_not_a_folder_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "system.toml"
    system.write_text("")
    not_a_folder = tmp_path / "file"
    not_a_folder.write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(not_a_folder))
    monkeypatch.setattr(config, "SYSTEM_CONFIG", system)
    assert default_config_path() == system


def test_an_agent_gets_a_small_part_of_the_environment() -> None:
    base = {"HOME": "/h", "PATH": "/p", "LC_ALL": "C", "TZ": "UTC", "XDG_CONFIG_HOME": "/c"}
    kept_back = {
        "API_KEY": "k",
        "SSH_AUTH_SOCK": "/s",
        "CREDENTIALS_DIRECTORY": "/d",
        "ACP_GATEWAY_TOKEN": "t",
        "LCX": "",
    }
    assert agent_environment(AgentSection(command=("x",)), base | kept_back) == base
    assert inherited_environment(base | kept_back) == base
    assert inherited_environment(base | kept_back, ["API_KEY", "MISSING"]) == base | {"API_KEY": "k"}


def test_env_wins_over_env_file_and_that_over_pass_env(tmp_path: Path) -> None:
    env_file = tmp_path / "agent.env"
    env_file.write_text("B=file\nC=file\nHOME=file")
    env_file.chmod(0o600)
    agent = AgentSection(command=("x",), env={"C": "env"}, env_file=env_file, pass_env=("A", "B", "C", "MISSING"))
    base = {"A": "base", "B": "base", "C": "base", "HOME": "base"}
    assert agent_environment(agent, base) == {"A": "base", "B": "file", "C": "env", "HOME": "file"}


def test_no_way_of_naming_it_gives_an_agent_a_variable_of_the_gateway() -> None:
    agent = AgentSection(command=("x",), env={"ACP_GATEWAY_A": "1"}, pass_env=("ACP_GATEWAY_B",))
    assert agent_environment(agent, {"ACP_GATEWAY_B": "2"}) == {}


def test_an_environment_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        agent_environment(AgentSection(command=("x",), env_file=tmp_path / "none"), {})
