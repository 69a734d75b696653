"""The options: what a file may set, the texts that are made of the code, and constants in old files."""

import dataclasses
import ipaddress
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.config import options
from acp_gateway.config.agent_options import AgentSection
from acp_gateway.config.cluster import ClusterSection
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.hosts import HostSection, load_hosts
from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.listeners import (
    PreviewUrl,
    PublicUrl,
    parse_host,
    read_hosts,
    read_listen_url,
    read_networks,
    read_origins,
    read_services,
)
from acp_gateway.config.load import Config, ListenSection, load_config
from acp_gateway.config.nodes import DoorSection, NodeSection
from acp_gateway.config.options import GatewaySection
from acp_gateway.config.permission_rules import RuleSection
from acp_gateway.config.reached import ReachedSection
from acp_gateway.config.schema import MIB, Entry, is_fixed, options_of, read_section
from acp_gateway.dialects.editor.service import EditorSection
from acp_gateway.dialects.tap.service import IGNORED, TapSection, read_names
from acp_gateway.errors import ConfigError, UsageError
from acp_gateway.gateway.session_api.file_search import SKIPPED
from acp_gateway.server.config_check import check_config
from tests.config.test_schema import entry

ROOT = Path(__file__).parents[2]
GATEWAY_TOML = ROOT / "examples/gateway.toml"
HOSTS_TOML = ROOT / "examples/hosts.toml"

SECTIONS: dict[str, Any] = {
    "[gateway]": options.GatewaySection,
    "[limits]": LimitsSection,
    "[[listen]]": options.ListenSection,
    "[agents.demo]": AgentSection,
    "[nodes.gpu]": NodeSection,
    "[doors.home]": DoorSection,
    "[cluster]": ClusterSection,
    "[workspaces.project]": options.WorkspaceSection,
    "[certificates.laptop]": options.CertificateSection,
    "[[rules]]": RuleSection,
    "[hooks]": options.HooksSection,
    "[tap]": TapSection,
    "[editor]": EditorSection,
    "[log]": options.LogSection,
    "[hosts.box]": HostSection,
}
"""By the header of the example."""

each_section = pytest.mark.parametrize(("header", "section"), [*SECTIONS.items()], ids=[*SECTIONS])


@pytest.fixture(autouse=True)
def plain_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def options_in_example(header: str) -> dict[str, tuple[bool, str, str]]:
    """By name: whether it is commented out, its value, its explanation."""
    text = (HOSTS_TOML if header == "[hosts.box]" else GATEWAY_TOML).read_text()
    off, body = next(iter(re.findall(rf"^((?:# )?){re.escape(header)}\n((?:.+\n)*)", text, re.MULTILINE)), ("", ""))
    found = {}
    for line in body.splitlines():
        match = re.fullmatch(r"(?P<off># )?(?P<name>\w+) = (?P<value>.*?) {2,}# (?P<text>.+)", line.removeprefix(off))
        assert match is not None, line
        found[match["name"]] = (match["off"] is not None, match["value"], match["text"])
    return found


def test_there_are_few_options() -> None:
    shared = {"url", *options_of(ReachedSection)}
    names = [(header, name) for header, section in SECTIONS.items() for name in options_of(section)]
    reached = [header for header, section in SECTIONS.items() if issubclass(section, ReachedSection)]
    assert len({("" if header in reached and name in shared else header, name) for header, name in names}) <= 85


@each_section
def test_the_example_has_every_option_with_its_default(header: str, section: Any, tmp_path: Path) -> None:
    example, fields = options_in_example(header), options_of(section)
    assert sorted(example) == sorted(fields)
    required = [f"{name} = {value}" for name, (commented, value, _) in example.items() if not commented]
    for name, (commented, value, text) in example.items():
        source = "\n".join({*(line for line in required if not line.startswith(f"{name} =")), f"{name} = {value}"})
        problems: list[ConfigError] = []
        read = read_section(section, entry(tmp_path, f"[sample]\n{source}\n"), problems)
        assert problems == []
        field = fields[name]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if text.startswith("required"):
            assert default is (None if "or url" in text else dataclasses.MISSING), name
            assert not commented, name
        elif text.startswith("no default"):
            assert default is None, name
        else:
            assert (getattr(read, name), commented) == (default, True), name


@each_section
def test_a_constant_in_a_file_is_one_warning_and_has_its_value(header: str, section: Any, tmp_path: Path) -> None:
    fixed = [field.name for field in dataclasses.fields(section) if is_fixed(field)]
    required = [f"{name} = {value}" for name, (off, value, _) in options_in_example(header).items() if not off]
    plain = entry(tmp_path, "\n".join(["[sample]", *required]))
    at = entry(tmp_path, "\n".join(["[sample]", *required, *(f"{name} = 1" for name in fixed)]))
    problems: list[ConfigError] = []
    assert read_section(section, at, problems) == read_section(section, plain, problems)
    assert problems == []
    assert [(error.key, error.line) for error in at.file.removed] == [
        (f"sample.{name}", len(required) + 2 + index) for index, name in enumerate(fixed)
    ]
    assert all(" it is always " in error.message for error in at.file.removed)


def config_of(tmp_path: Path, more: str) -> Config:
    path = tmp_path / "config.toml"
    path.write_text(f'[[listen]]\nurl = "tcp://127.0.0.1:1"\n[agents.a]\ncommand = ["python3"]\n{more}\n')
    return load_config(path)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("stall_timeout", "this is not an option any more: it is always 60 s; remove the line"),
        ("max_open_requests", "this option is ignored: it is a constant; remove the line"),
        ("node_write_delay", "this option is ignored: sessions of a node are stored there alone; remove the line"),
    ],
)
def test_an_option_of_a_former_version_is_told_by_serve_and_check_config(tmp_path: Path, name: str, why: str) -> None:
    line = f"{tmp_path}/config.toml:6: gateway.{name}: {why}"
    config = config_of(tmp_path, f"[gateway]\n{name} = 5")
    assert (config.gateway, config.removed) == (options.GatewaySection(), (line,))
    found = [(finding.severity, str(finding.error)) for finding in check_config(tmp_path / "config.toml")]
    assert ("warning", line) in found


def test_limits_of_a_part_follow_the_options(tmp_path: Path) -> None:
    config = config_of(tmp_path, "[gateway]\nhistory_limit = 8388608\n[limits]\nmax_connections = 100")
    assert config.gateway == options.GatewaySection(history_limit=8 * MIB, history_limit_per_identity=4 * MIB)
    assert config.limits == LimitsSection(max_connections=100, connections_per_identity=50)


@pytest.mark.parametrize(
    ("memory", "message", "expected"),
    [
        (4096, 16, (32, 64, 16, 8, 8)),
        (512, 16, (16, 32, 16, 4, 4)),
        (512, 1, (16, 32, 8, 4, 4)),
        (64, 16, (16, 16, 16, 1, 0.5)),
        (64, 24, (24, 24, 24, 1, 0.5)),
    ],
)
def test_a_small_memory_limit_lowers_others_in_proportion_and_a_message_still_fits(
    memory: int, message: int, expected: tuple[float, ...], tmp_path: Path
) -> None:
    sizes = f"[gateway]\nmemory_limit = {memory * MIB}\nmax_message_size = {message * MIB}"
    read = config_of(tmp_path, sizes).gateway
    limits = (read.outbox_limit, read.away_limit, read.journal_limit, read.resume_window, read.write_behind_limit)
    assert limits == tuple(size * MIB for size in expected)


def test_each_derived_limit_follows_for_the_defaults() -> None:
    for section in (options.GatewaySection(), LimitsSection()):
        values = dataclasses.asdict(section)
        assert {name: rule.of(values) for name, rule in section.DERIVED.items()} == {
            name: values[name] for name in section.DERIVED
        }


def test_the_schema_has_every_option_and_section() -> None:
    sections = json.loads((ROOT / "acp_gateway/config/schema.json").read_text())["properties"]
    for header, section in SECTIONS.items():
        if header == "[hosts.box]":
            continue
        table = sections.pop(re.split(r"[\].]", header.strip("["))[0])
        table = table.get("items", table.get("additionalProperties") or table)
        assert sorted(table["properties"]) == sorted(options_of(section))
    assert sections == {}


def test_the_gateway_example_loads_as_it_is() -> None:
    config = load_config(GATEWAY_TOML)
    assert config.gateway == options.GatewaySection()
    assert [str(listener.address) for listener in config.listen] == ["wss://127.0.0.1:7443/acp"]
    assert config.agents == {"demo": AgentSection(command=("python3", "examples/demo_agent.py"))}
    assert (config.hooks, config.default_agent, config.removed) == (options.HooksSection(), "demo", ())


def test_the_hosts_example_loads_as_it_is() -> None:
    host = load_hosts(HOSTS_TOML)["box"]
    assert str(host.address) == "wss://box.example:7443/acp"
    assert (host.agent, host.token_file, host.pin, host.ca, host.maps) == (None, None, None, None, ())


def toml_blocks(document: str) -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


def test_the_configuration_by_hand_is_one_that_the_gateway_takes(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(toml_blocks("docs/configuration.md")[0])
    config = load_config(path)
    assert [str(listener.address) for listener in config.listen] == ["wss://0.0.0.0:7443/acp"]
    assert config.listen[0].cert == tmp_path / "cert.pem"
    assert (list(config.workspaces), config.default_agent) == (["proj"], "opencode")


def test_the_hosts_without_ssh_are_ones_that_connect_takes(tmp_path: Path) -> None:
    (written,) = toml_blocks("docs/first-steps.md")
    path = tmp_path / "hosts.toml"
    path.write_text(written.replace("sha256:…", f"sha256:{'0' * 64}"))
    host = load_hosts(path)["box"]
    assert str(host.address) == "wss://box.example.org:7443/acp"
    assert host.maps == (("/Users/ann/proj", "/srv/proj"),)


def test_values_of_the_environment_do_not_show_in_a_repr() -> None:
    assert "hidden" not in repr(AgentSection(command=("x",), env={"KEY": "hidden"}))


Read = Callable[[Callable[[Entry], Any], str], Any]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read a value of TOML."""

    def read_value(reader: Callable[[Entry], Any], value: str) -> Any:
        path = tmp_path / "config.toml"
        path.write_text(f"option = {value}\n")
        file = TomlFile.read(path)
        return reader(Entry(file, (), file.data).child("option", None))

    return read_value


def error_of(read: Read, reader: Callable[[Entry], Any], value: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(reader, value)
    return str(caught.value).partition("option")[2]


@pytest.mark.parametrize(
    ("serves", "error"),
    [
        (
            '"acp"',
            (
                ': expected an array of "acp", "page", "chat", "metrics", "tap", "editor", "ports" or "ahp", '
                "found a string"
            ),
        ),
        ("[]", ': expected at least one of "acp", "page", "chat", "metrics", "tap", "editor", "ports" or "ahp"'),
        (
            '["acp", "metric"]',
            (
                '[1]: expected "acp", "page", "chat", "metrics", "tap", "editor", "ports" or "ahp", found "metric"; '
                'did you mean "metrics"?'
            ),
        ),
        (
            "[1]",
            '[0]: expected "acp", "page", "chat", "metrics", "tap", "editor", "ports" or "ahp", found a whole number',
        ),
        ('["acp", "tap"]', ': "tap" has an address of its own: its lines are not messages of ACP'),
        ('["page"]', ': "page" needs "acp" beside it: the page connects to the endpoint at its own address'),
    ],
)
def test_what_is_wrong_with_serves_is_said_with_the_words_that_are_known(serves: str, error: str, read: Read) -> None:
    assert error_of(read, read_services, serves) == error


@pytest.mark.parametrize("origin", ["*", "null", "editor.example", "https://editor.example/", "https://Editor.example"])
def test_an_origin_is_what_a_browser_sends(origin: str, read: Read) -> None:
    assert read(read_origins, '["https://a.example"]') == ("https://a.example",)
    assert error_of(read, read_origins, f'["https://a.example", "{origin}"]').startswith("[1]: expected an origin")


@pytest.mark.parametrize("host", ["Box.example", "box:7443", "https://box", ""])
def test_an_allowed_host_is_in_lower_case_and_without_a_port(host: str, read: Read) -> None:
    assert read(read_hosts, '["box.example", "[::1]"]') == ("box.example", "[::1]")
    assert error_of(read, read_hosts, f'["{host}"]').startswith("[0]: expected a host")


@pytest.mark.parametrize("network", ['"box"', '"10.0.0.1/8"', "1"])
def test_a_trusted_proxy_is_an_address_or_a_network(network: str, read: Read) -> None:
    assert read(read_networks, '["10.0.0.0/8"]') == (ipaddress.ip_network("10.0.0.0/8"),)
    assert error_of(read, read_networks, f"[{network}]").startswith("[0]: expected an IP address or a network")


def test_the_url_of_a_listener_is_kept_as_it_stands_if_it_can_be_parsed(read: Read) -> None:
    assert read(read_listen_url, '"wss://box"') == "wss://box"
    assert read(read_listen_url, '"ws://box/acp"') == "ws://box/acp"
    assert error_of(read, read_listen_url, '"box"').startswith(": ")
    assert error_of(read, read_listen_url, '"ws://box/message"').startswith(": has the path /message, ")
    assert error_of(read, read_listen_url, "1") == ": expected a URL, found a whole number"


@pytest.mark.parametrize(
    ("text", "origin", "path", "endpoint"),
    [
        ("https://gpu.example", "https://gpu.example", "", "wss://gpu.example:443/acp"),
        ("https://gpu.example/", "https://gpu.example", "", "wss://gpu.example:443/acp"),
        ("https://gpu.example:443/gateway", "https://gpu.example", "/gateway", "wss://gpu.example:443/gateway/acp"),
        ("https://gpu.example:8443/a/b-c/", "https://gpu.example:8443", "/a/b-c", "wss://gpu.example:8443/a/b-c/acp"),
        ("https://[2001:db8::1]/~ann", "https://[2001:db8::1]", "/~ann", "wss://[2001:db8::1]:443/~ann/acp"),
        ("http://localhost:80/a", "http://localhost", "/a", "ws://localhost:80/a/acp"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "", "ws://127.0.0.1:8080/acp"),
    ],
)
def test_a_public_url_has_the_origin_that_browsers_send(text: str, origin: str, path: str, endpoint: str) -> None:
    url = PublicUrl.parse(text)
    assert (url.origin, url.path, str(url.endpoint)) == (origin, path, endpoint)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu.example",
        "wss://gpu.example",
        "https://GPU.example",
        "https://",
        "https://gpu.example?x",
        "https://gpu.example/#x",
        "https://ann@gpu.example",
        "https://gpu.example//a",
        "https://gpu.example/a//",
        "https://gpu.example/../a",
        "https://gpu.example/.a",
        "https://gpu.example/a b",
        "https://gpu.example/%61",
        "https://gpu.example/a;b=c",
        "https://gpu.example:",
        "https://gpu.example\n",
    ],
)
def test_a_public_url_that_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"such as .https://gpu\.example"):
        PublicUrl.parse(text)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("GPU.Example", "gpu.example"),
        ("box_1", "box_1"),
        ("192.0.2.7", "192.0.2.7"),
        ("2001:DB8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
    ],
)
def test_a_host_is_a_name_or_an_address_that_can_be_in_a_url(text: str, host: str) -> None:
    assert parse_host(text) == host
    assert PublicUrl.parse(f"https://{f'[{host}]' if ':' in host else host}").secure


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("http://foo/", ": leave out all but foo"),
        ("https://ann@foo:7443/acp", ": leave out all but foo"),
        ("box:443", ": leave out all but box"),
        ("gpu box", ""),
        ("", ""),
        ("-x", ""),
        ("gpu.example\n", ""),
        ("fe80::1%eth0", ""),
        ("[gpu]", ""),
        ("x" * 254, ""),
    ],
)
def test_a_host_is_refused_with_the_part_of_it_that_is_one(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_host(text)
    assert str(error.value).endswith(f"is not a name or address of a machine{hint}")


def test_a_public_url_off_this_machine_is_https() -> None:
    with pytest.raises(UsageError, match="only https:// leads off this machine"):
        PublicUrl.parse("http://gpu.example")


@pytest.mark.parametrize(
    ("url", "allowed", "public_url", "hosts"),
    [
        ("ws://127.0.0.1:1", (), None, ()),
        ("ws://127.0.0.1:1", (), "https://gpu.example:8443/a", ("gpu.example",)),
        ("ws://127.0.0.1:1", ("box",), "https://gpu.example", ("box", "gpu.example")),
        # Where every name is accepted, a public URL does not change that.
        ("wss://0.0.0.0:1", (), "https://gpu.example", ()),
        ("wss://0.0.0.0:1", ("box",), "https://gpu.example", ("box", "gpu.example")),
    ],
)
def test_the_name_of_the_public_url_is_accepted_beside_allowed_hosts(
    url: str, allowed: tuple[str, ...], public_url: str | None, hosts: tuple[str, ...]
) -> None:
    assert ListenSection(url=url, allowed_hosts=allowed, public_url=public_url).hosts == hosts


def names(path: Path, value: str) -> tuple[str, ...]:
    path.write_text(f"ignore = {value}\n")
    file = TomlFile.read(path)
    return read_names(Entry(file, (), file.data).child("ignore", None))


def test_the_tap_ignores_by_default_what_a_search_for_files_skips() -> None:
    assert set(TapSection().ignore) == set(IGNORED) == SKIPPED


def test_ignore_takes_names_of_directories_and_may_be_empty(tmp_path: Path) -> None:
    assert names(tmp_path / "file", '["out", ".cache"]') == ("out", ".cache")
    assert names(tmp_path / "file", "[]") == ()


@pytest.mark.parametrize("value", ['"out"', "[1]", '[""]', '["a/b"]', '["*"]'])
def test_ignore_takes_nothing_else(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected "):
        names(tmp_path / "file", value)


def test_the_bodies_that_are_received_at_a_time_fit_what_one_client_may_make_the_gateway_hold() -> None:
    section = EditorSection()
    assert section.message_size * section.bodies_per_identity <= GatewaySection().outbox_limit


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://*.box.example", "https://6006-a.box.example"),
        ("https://*.box.example:443", "https://6006-a.box.example"),
        ("https://*.box.example:7443", "https://6006-a.box.example:7443"),
        ("http://*.localhost:7080", "http://6006-a.localhost:7080"),
    ],
)
def test_a_preview_has_an_origin_below_the_name_of_all(text: str, origin: str) -> None:
    assert PreviewUrl.parse(text).origin("6006-a") == origin


@pytest.mark.parametrize(
    "text",
    ["https://box.example", "https://*", "https://*.", "https://a.*.box", "https://*.BOX", "https://*.box/x", "*.box"],
)
def test_the_address_of_previews_has_one_wildcard_at_its_beginning(text: str) -> None:
    with pytest.raises(UsageError, match="with a wildcard"):
        PreviewUrl.parse(text)


def test_previews_off_this_machine_are_https() -> None:
    with pytest.raises(UsageError, match="only https:// leads off this machine"):
        PreviewUrl.parse("http://*.box.example")
