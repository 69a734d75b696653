import tomllib
from pathlib import Path

import pytest

from acp_gateway.cli.gateway.setting_up import describe_agents
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.load import Config, collect
from acp_gateway.config.nodes import NodeSection, split_name

PIN = "sha256:" + "0aB1" * 16
LISTEN = '[[listen]]\nurl = "ws://127.0.0.1:1"\n[gateway]\nstate_dir = "/srv/state"\n'
NODES = {"gpu": NodeSection(url=parse_target("wss://gpu.example:7443"), token_file=Path("/gpu.token"), pin="sha256:1")}


def read(source: str) -> tuple[object, list[str]]:
    config, problems = collect(TomlFile(Path("/etc/file.toml"), tomllib.loads(LISTEN + source), LISTEN + source))
    return config, [problem.message for problem in problems]


def test_a_node_is_read_with_all_its_options_and_needs_no_agent_beside_it() -> None:
    source = f"""
        [nodes.gpu]
        url = "gpu.example"
        token_file = "gpu.token"
        pin = "{PIN}"
        ca = "gpu.pem"
        insecure_plaintext = true
    """
    config, problems = collect(TomlFile(Path("/etc/file.toml"), tomllib.loads(LISTEN + source), LISTEN + source))
    assert problems == []
    assert config is not None
    assert config.nodes == {
        "gpu": NodeSection(
            url=parse_target("wss://gpu.example:7443/acp"),
            token_file=Path("/etc/gpu.token"),
            pin=PIN.lower(),
            ca=Path("/etc/gpu.pem"),
            insecure_plaintext=True,
        )
    }
    assert (config.agents, config.default_agent) == ({}, "")
    assert config.leads_to("gpu/opencode")
    assert not config.is_private("gpu/opencode")


def test_a_door_of_lent_nodes_alone_has_an_empty_table_of_agents() -> None:
    config, problems = read("[agents]")
    assert problems == []
    assert isinstance(config, Config)
    assert (config.agents, config.default_agent) == ({}, "")
    assert describe_agents(config) == "none; default: none"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('[nodes.gpu]\nurl = "gpu"\n', "this option is required"),
        ('[nodes.gpu]\ntoken_file = "t"\n', "this option is required"),
        ('[nodes."a/b"]\nurl = "gpu"\ntoken_file = "t"\n', "a name is 1 to 64"),
        ('[nodes.gpu]\nurl = 3\ntoken_file = "t"\n', "expected a URL or host[:port]"),
        ('[nodes.gpu]\nurl = "gpu/x"\ntoken_file = "t"\n', "is neither a URL nor host[:port]"),
        ('[nodes.gpu]\nurl = "ssh://gpu"\ntoken_file = "t"\n', "the link to a node is a WebSocket"),
        ('[nodes.gpu]\nurl = "tcp://127.0.0.1:1"\ntoken_file = "t"\n', "the link to a node is a WebSocket"),
        ('[nodes.gpu]\nurl = "https://gpu"\ntoken_file = "t"\n', "the link to a node is a WebSocket"),
        ('[nodes.gpu]\nurl = "ws://gpu"\ntoken_file = "t"\n', "the network could read tokens and code"),
        (f'[nodes.gpu]\nurl = "ws://127.0.0.1"\ntoken_file = "t"\npin = "{PIN}"\n', "is for TLS, and ws has none"),
        ('[nodes.gpu]\nurl = "gpu"\ntoken_file = "t"\ntoken = "x"\n', "unknown option"),
    ],
)
def test_mistakes_in_a_section_are_told(source: str, problem: str) -> None:
    config, problems = read(source)
    assert config is None
    assert any(problem in text for text in problems), problems


def test_plaintext_to_another_machine_has_to_be_allowed() -> None:
    assert read('[nodes.gpu]\nurl = "ws://gpu"\ntoken_file = "t"\ninsecure_plaintext = true\n')[1] == []


@pytest.mark.parametrize(
    ("default", "problem"),
    [
        ("gpu/opencode", None),
        # It may have been added by `nodes add`.
        ("cpu/opencode", None),
        ("gpu/open code", "a name is 1 to 64"),
        ("gpu/a/b", "a name is 1 to 64"),
    ],
)
def test_the_default_agent_may_be_that_of_a_node(default: str, problem: str | None) -> None:
    source = f"""
        default_agent = "{default}"
        [agents.demo]
        command = ["demo"]
        [nodes.gpu]
        url = "gpu"
        token_file = "t"
    """
    problems = read(source)[1]
    assert problems == [] if problem is None else any(problem in text for text in problems), problems


def test_a_certificate_may_be_for_the_agents_of_a_node() -> None:
    source = """
        [agents.demo]
        command = ["demo"]
        [nodes.gpu]
        url = "gpu"
        token_file = "t"
        [[listen]]
        url = "wss://127.0.0.1:2"
        cert = "c"
        key = "k"
        client_ca = "a"
        [certificates.ann]
        subject = "CN=ann"
        agents = ["gpu/opencode", "cpu"]
    """
    _, problems = read(source)
    assert [problem for problem in problems if "there is no [agents." in problem] == ["there is no [agents.cpu]"], (
        problems
    )


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("gpu/opencode", ("gpu", "opencode")),
        ("gpu/a/b", ("gpu", "a/b")),
        ("gpu/", None),
        ("gpu", None),
        ("/gpu", None),
        ("cpu/opencode", None),
    ],
)
def test_a_name_begins_with_that_of_the_node(name: str, parts: tuple[str, str] | None) -> None:
    assert split_name(name, NODES) == parts


@pytest.mark.parametrize("name", ["gpu/a/b", "gpu/a b", "gpu/" + "a" * 65, "cpu/a", "gpu", "opencode"])
def test_other_names_are_not_agents_of_a_node(name: str) -> None:
    source = LISTEN + '[nodes.gpu]\nurl = "gpu"\ntoken_file = "t"\n'
    config, _ = collect(TomlFile(Path("/etc/file.toml"), tomllib.loads(source), source))
    assert config is not None
    assert config.leads_to("gpu/opencode")
    assert not config.leads_to(name)
