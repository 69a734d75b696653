"""The example of a cluster in containers: its configurations and its commands."""

import re
import shlex
import textwrap
import tomllib
from pathlib import Path

from acp_gateway.cli.main import main
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.load import collect
from tests.kit.doubles import run_command as run

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "examples" / "compose.yaml").read_text()


def configurations() -> list[str]:
    """The contents of the configurations in the file."""
    found = re.findall(r"^    content: \|\n((?:      .*\n|\n)+)", TEXT, re.MULTILINE)
    return [textwrap.dedent(content) for content in found]


def test_each_configuration_in_compose_is_valid() -> None:
    assert len(configurations()) == 2
    names = set()
    for content in configurations():
        config, problems = collect(TomlFile(Path("/config.toml"), tomllib.loads(content), content))
        assert problems == []
        assert config is not None
        assert config.cluster is not None
        names.add(config.cluster.name)
        assert f"hostname: {config.cluster.name}\n" in TEXT
        (agent,) = config.agents.values()
        assert agent.command is not None
        assert (ROOT / Path(agent.command[1]).relative_to("/src")).is_file()
    assert names == {"gpu1", "gpu2"}


def test_secrets_beside_compose_are_left_out_of_the_image_and_the_repository() -> None:
    secrets = set(re.findall(r'"\./(\S+?):', TEXT)) - {"cert.pem"}
    assert secrets == {"cluster.token", "key.pem"}
    for name, prefix in ((".dockerignore", "**/"), (".gitignore", "")):
        patterns = (ROOT / name).read_text().splitlines()
        for secret in secrets:
            assert f"{prefix}*{Path(secret).suffix}" in patterns


def test_valkey_in_compose_has_the_options_with_which_clusters_are_tested() -> None:
    (words,) = re.findall(r"command: \[valkey-server, (.*)\]", TEXT)
    options = [word.strip('"') for word in words.split(", ")]
    source = (ROOT / "tests" / "kit" / "redis_server.py").read_text()
    assert ", ".join(f'"{option}"' for option in options) in source


def test_each_command_in_compose_is_there_with_its_options() -> None:
    lines = re.findall(r"acp-gateway ((?:token|certs|serve)\b.*)", TEXT)
    lines += [" ".join(re.findall(r"[\w./-]+", line)) for line in re.findall(r"command: \[acp-gateway, (.*)\]", TEXT)]
    assert len(lines) == 4
    for line in lines:
        words = shlex.split(line)
        names = [word for word in words if not word.startswith("-")][: 2 if words[0] != "serve" else 1]
        assert names[0] in main.list_commands(None)  # type: ignore[arg-type] # It needs no context.
        shown = run(*names, "--help")
        assert shown.exit_code == 0
        assert all(word in shown.stdout for word in words if word.startswith("--"))
