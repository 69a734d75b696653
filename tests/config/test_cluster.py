"""The section `[cluster]`."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.cluster import RedisAddress
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.load import Config, collect, load_config
from acp_gateway.errors import ConfigError

LISTEN = '[[listen]]\nurl = "tcp://127.0.0.1:7443"\n'
CLUSTER = '[cluster]\nurl = "redis://127.0.0.1"\nname = "gpu1"\ntoken_file = "t"\n'

Read = Callable[[str], tuple[Config | None, list[str]]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str) -> tuple[Config | None, list[str]]:
        path = tmp_path / "config.toml"
        path.write_text(LISTEN + text)
        config, problems = collect(TomlFile.read(path))
        return config, [error.message for error in problems if isinstance(error, ConfigError)]

    return read


def test_cluster_needs_no_agent_of_its_own(read: Read, tmp_path: Path) -> None:
    config, problems = read(CLUSTER)
    assert problems == []
    assert config is not None
    assert config.cluster is not None
    assert config.cluster.url == RedisAddress("127.0.0.1", 6379, "", tls=False, db=0, user=None)
    assert config.cluster.token_file == tmp_path / "t"
    assert (config.cluster.ttl, config.cluster.renew, config.agents) == (15, 5, {})


def test_options_of_earlier_versions_are_ignored_with_a_line_for_each(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(LISTEN + CLUSTER + 'mirror = false\nmirror_limit = 1\nretention = "30d"\n')
    config = load_config(path)
    start = 1 + (LISTEN + CLUSTER).count("\n")
    why = "this option is ignored: sessions stay on their node, and nothing of them is in Redis"
    assert config.removed == tuple(
        f"{path}:{line}: cluster.{name}: {why}"
        for line, name in enumerate(("mirror", "mirror_limit", "retention"), start)
    )
    path.write_text(LISTEN + CLUSTER)
    assert replace(config, removed=()) == load_config(path)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost", "redis://localhost:6379/0"),
        ("rediss://redis.example:7000/3", "rediss://redis.example:7000/3"),
        ("redis://ann@[::1]:1/", "redis://[::1]:1/0"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_cluster_url_names_redis(url: str, shown: str, read: Read) -> None:
    config, problems = read(CLUSTER.replace("redis://127.0.0.1", url))
    assert problems == []
    assert config is not None
    assert config.cluster is not None
    assert str(config.cluster.url) == shown


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('url = "redis://"', "expected redis://host:port"),
        ('url = "redis://127.0.0.1:x"', "expected redis://host:port"),
        ('url = "redis://127.0.0.1/x"', "expected redis://host:port"),
        ('url = "redis://127.0.0.1/0?db=1"', "expected redis://host:port"),
        ('url = "http://127.0.0.1"', "expected redis://host:port"),
        ('url = "unix://redis.sock"', "expected redis://host:port"),
        ("url = 3", "expected a URL"),
        ('url = "redis://redis.example"', "the network could read addresses"),
        ('ca = "ca.pem"', "is for TLS: use rediss://"),
        ('advertise = "ws://gpu1.example"', "the network could read tokens"),
        ('advertise = "tcp://gpu1.example"', "the link to a node is a WebSocket"),
        ('pin = "sha256:12"', "64 hexadecimal digits"),
        ('name = "a/b"', "a name is 1 to 64"),
        ("nonsense = 1", "unknown option"),
    ],
)
def test_cluster_options_that_do_not_fit_are_explained(line: str, words: str, read: Read) -> None:
    option = line.partition(" ")[0]
    kept = [other for other in CLUSTER.splitlines() if not other.startswith(f"{option} =")]
    config, problems = read("\n".join([*kept, line]))
    assert config is None
    assert len(problems) == 1
    assert words in problems[0]


def test_cluster_url_with_a_password_is_refused_without_repeating_it(read: Read) -> None:
    config, problems = read(CLUSTER.replace("redis://", "redis://ann:hunter2@"))
    assert config is None
    assert "password_file" in problems[0]
    assert "hunter2" not in problems[0]


def test_cluster_advertise_and_pin_none_are_read(read: Read) -> None:
    config, problems = read(CLUSTER + 'advertise = "wss://gpu1.example"\npin = "none"\n')
    assert problems == []
    assert config is not None
    assert config.cluster is not None
    assert config.cluster.advertise == parse_target("wss://gpu1.example")
    assert config.cluster.pin == "none"


def test_default_agent_may_be_of_a_node_of_the_cluster(read: Read) -> None:
    agent = '[agents.a]\ncommand = ["x"]\n'
    assert read(f'{agent}[gateway]\ndefault_agent = "gpu2/opencode"\n{CLUSTER}')[1] == []


@pytest.mark.parametrize("more", ["", '[nodes.gpu]\nurl = "gpu"\ntoken_file = "t"\n'])
def test_without_cluster_its_package_is_not_imported(more: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(LISTEN + '[agents.a]\ncommand = ["x"]\n' + more)
    source = f"""
import sys
from pathlib import Path
from acp_gateway.config.load import load_config
import acp_gateway.server.serve
import acp_gateway.nodes.node_set
load_config(Path({str(path)!r}))
print([name for name in sys.modules if "cluster" in name or "redis" in name])
"""
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
