"""The example files and the reference, held against the options in the code, both ways."""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.config.agents.options import AgentSection
from acp_gateway.config.cluster import ClusterSection
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.hosts import HostSection, load_hosts
from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.load import load_config
from acp_gateway.config.nodes import NodeSection
from acp_gateway.config.options import (
    CertificateSection,
    EditorSection,
    GatewaySection,
    HooksSection,
    ListenSection,
    LogSection,
    TapSection,
    WorkspaceSection,
)
from acp_gateway.config.schema import Entry, read_section
from acp_gateway.errors import ConfigError

ROOT = Path(__file__).parents[2]
GATEWAY_TOML = ROOT / "examples/gateway.toml"
HOSTS_TOML = ROOT / "examples/hosts.toml"
REFERENCE = ROOT / "docs/configuration.md"

SECTIONS: list[Any] = [
    pytest.param(GATEWAY_TOML, "[gateway]", GatewaySection, id="gateway"),
    pytest.param(GATEWAY_TOML, "[limits]", LimitsSection, id="limits"),
    pytest.param(GATEWAY_TOML, "[[listen]]", ListenSection, id="listen"),
    pytest.param(GATEWAY_TOML, "[agents.demo]", AgentSection, id="agents"),
    pytest.param(GATEWAY_TOML, "[nodes.gpu]", NodeSection, id="nodes"),
    pytest.param(GATEWAY_TOML, "[cluster]", ClusterSection, id="cluster"),
    pytest.param(GATEWAY_TOML, "[workspaces.project]", WorkspaceSection, id="workspaces"),
    pytest.param(GATEWAY_TOML, "[certificates.laptop]", CertificateSection, id="certificates"),
    pytest.param(GATEWAY_TOML, "[hooks]", HooksSection, id="hooks"),
    pytest.param(GATEWAY_TOML, "[tap]", TapSection, id="tap"),
    pytest.param(GATEWAY_TOML, "[editor]", EditorSection, id="editor"),
    pytest.param(GATEWAY_TOML, "[log]", LogSection, id="log"),
    pytest.param(HOSTS_TOML, "[hosts.box]", HostSection, id="hosts"),
]


@pytest.fixture(autouse=True)
def plain_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def options_in_example(path: Path, header: str) -> dict[str, tuple[bool, str, str]]:
    """By name: whether it is commented out, its value, its explanation."""
    text = path.read_text()
    if f"\n# {header}\n" in text:
        # A section that is commented out as a whole, up to the next blank line.
        section = text.partition(f"\n# {header}\n")[2].partition("\n\n")[0]
        text = f"\n{header}\n" + re.sub("^# ", "", section, flags=re.MULTILINE)
    text = text.partition(f"\n{header}\n")[2]
    body = re.split(r"^(?:# )?\[", text, maxsplit=1, flags=re.MULTILINE)[0]
    options = {}
    for line in body.splitlines():
        match = re.fullmatch(r"(?P<off># )?(?P<name>\w+) = (?P<value>.*?) {2,}# (?P<text>.+)", line)
        if match is None:
            assert line == "" or re.match(r"# (?!\w+ =)", line), f"not understood: {line}"
            continue
        assert match["name"] not in options
        options[match["name"]] = (match["off"] is not None, match["value"], match["text"])
    return options


def options_in_reference(header: str) -> dict[str, str]:
    """By name: the text in the column of defaults."""
    title = re.sub(r"(?<=\.)\w+", "NAME", header)
    body = REFERENCE.read_text().partition(f"\n### `{title}`\n")[2].partition("\n#")[0]
    rows = [re.split(r" *\| *", line.strip("| ")) for line in body.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[2] for row in rows}


def default_of(section: Any, name: str) -> Any:
    (field,) = (field for field in dataclasses.fields(section) if field.name == name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def as_read(section: Any, name: str, value: str) -> Any:
    """Return that value of that option as the code reads it."""
    required = {"url": "tcp://127.0.0.1", "command": ["x"], "root": "/srv", "subject": "CN=x", "token_file": "t"}
    if section is NodeSection:
        required["url"] = "ws://127.0.0.1"
    if section is ClusterSection:
        required |= {"url": "redis://127.0.0.1", "name": "gpu1"}
    source = "".join(
        f"{option} = {required[option]!r}\n"
        for option in required
        if option != name
        and any(field.name == option and field.default is dataclasses.MISSING for field in dataclasses.fields(section))
    )
    source += f"{name} = {value}\n"
    file = TomlFile(ROOT / "file.toml", tomllib.loads(source), source)
    problems: list[ConfigError] = []
    result = read_section(section, Entry(file, (), file.data), problems)
    assert problems == []
    return getattr(result, name)


@pytest.mark.parametrize(("path", "header", "section"), SECTIONS)
def test_the_example_has_every_option_and_no_other(path: Path, header: str, section: Any) -> None:
    assert sorted(options_in_example(path, header)) == sorted(field.name for field in dataclasses.fields(section))


@pytest.mark.parametrize(("path", "header", "section"), SECTIONS)
def test_the_example_shows_the_defaults(path: Path, header: str, section: Any) -> None:
    for name, (commented, value, text) in options_in_example(path, header).items():
        default = default_of(section, name)
        if text.startswith("required"):
            assert default is (None if "or url" in text else dataclasses.MISSING), name
            assert not commented, name
        elif text.startswith("no default"):
            assert default is None, name
            as_read(section, name, value)
        else:
            assert as_read(section, name, value) == default, name
            assert commented, name


@pytest.mark.parametrize(("path", "header", "section"), SECTIONS)
def test_the_reference_has_every_option_with_its_default_and_no_other(path: Path, header: str, section: Any) -> None:
    reference = options_in_reference(header)
    assert list(reference) == [field.name for field in dataclasses.fields(section)]
    for name, text in reference.items():
        default = default_of(section, name)
        if default is dataclasses.MISSING:
            assert text == "required", name
        elif default is None:
            assert text == "none", name
        else:
            assert re.fullmatch("`[^`]+`", text), name
            assert as_read(section, name, text.strip("`")) == default, name


def test_each_row_of_the_reference_can_be_read_without_the_row_above_or_the_type_before_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|[^|]*\| (.*) \|$", REFERENCE.read_text(), re.MULTILINE)
    assert len(rows) > 50
    dangling = ("That ", "Which ", "Of ", "For which ", "After which ", "In which ", "Between ", "The same ")
    assert [name for name, text in rows if text.startswith(dangling)] == []


def test_the_gateway_example_loads_as_it_is() -> None:
    config = load_config(GATEWAY_TOML)
    assert config.gateway == GatewaySection()
    assert [str(listener.address) for listener in config.listen] == ["wss://127.0.0.1:7443/acp"]
    assert config.agents == {"demo": AgentSection(command=("python3", "examples/demo_agent.py"))}
    assert config.hooks == HooksSection()
    assert config.default_agent == "demo"


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
    assert list(config.workspaces) == ["proj"]
    assert config.default_agent == "opencode"


def test_the_hosts_without_ssh_are_ones_that_connect_takes(tmp_path: Path) -> None:
    (written,) = toml_blocks("docs/first-steps.md")
    path = tmp_path / "hosts.toml"
    path.write_text(written.replace("sha256:…", f"sha256:{'0' * 64}"))
    host = load_hosts(path)["box"]
    assert str(host.address) == "wss://box.example.org:7443/acp"
    assert host.maps == (("/Users/ann/proj", "/srv/proj"),)


def test_every_option_says_in_the_code_what_it_is_for() -> None:
    sections: list[tuple[str, list[Any]]] = [
        (
            "options.py",
            [
                GatewaySection,
                ListenSection,
                WorkspaceSection,
                CertificateSection,
                HooksSection,
                LogSection,
            ],
        ),
        ("agent_options.py", [AgentSection]),
        ("nodes.py", [NodeSection]),
        ("cluster.py", [ClusterSection]),
        ("tap_options.py", [TapSection]),
        ("limits.py", [LimitsSection]),
        ("hosts.py", [HostSection]),
    ]
    for path, names in sections:
        source = (ROOT / "acp_gateway" / "config" / path).read_text()
        for section in names:
            for field in dataclasses.fields(section):
                assert re.search(rf'^    {field.name}: .*\n    """', source, re.MULTILINE), field.name


def test_values_of_the_environment_do_not_show_in_a_repr() -> None:
    assert "hidden" not in repr(AgentSection(command=("x",), env={"KEY": "hidden"}))
