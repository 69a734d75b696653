"""The places that the fence of an agent is to open, and those that it keeps closed."""

import sys
from dataclasses import replace
from pathlib import Path

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.load import AgentSection, load_config
from acp_gateway.config.nodes import DoorSection
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.gateway.agent.fencing import (
    fence_options,
    has_credential,
    may_have_fences,
    protected,
    usable_workspaces,
)
from tests.kit.doubles import make_config

CONFIG = """
[gateway]
default_agent = "a"
state_dir = "{root}/state"

[[listen]]
url = "ws://127.0.0.1:0"

[agents.a]
command = ["agent"]
fence = "on"
env_file = "{root}/env"

[agents.b]
url = "wss://b.example"
token_file = "{root}/b.token"

[nodes.c]
url = "wss://c.example"
token_file = "{root}/c.token"

[doors.home]
url = "wss://door.example"
token_file = "{root}/home.door"

[cluster]
url = "unix:///redis"
name = "here"
token_file = "{root}/cluster.token"
password_file = "{root}/password"

[workspaces.mine]
root = "{root}/mine"

[workspaces.yours]
root = "{root}/yours"
"""


def test_files_with_keys_and_workspaces_of_others_stay_closed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(root=tmp_path))
    for name in ("mine", "yours"):
        (tmp_path / name).mkdir()
    for name in ("env", "b.token", "c.token", "home.door", "cluster.token", "password"):
        (tmp_path / name).touch(mode=0o600)
    config = load_config(path)
    options = fence_options(config.agents["a"], config, SessionReach("ann"), ["mine"])
    assert options is not None
    names = ("state", "config.toml", "env", "b.token", "c.token", "home.door", "cluster.token", "password")
    assert {str(tmp_path / name) for name in names} <= {*options.private}
    assert (options.workspaces, options.others) == ([(f"{tmp_path}/mine", True)], [f"{tmp_path}/yours"])


def test_what_the_gateway_runs_or_trusts_is_known(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    text = CONFIG.format(root=tmp_path)
    for name in ("mine", "yours"):
        (tmp_path / name).mkdir()
    for name in ("env", "b.token", "c.token", "cluster.token", "password", "notify.py", "agent.py"):
        (tmp_path / name).touch(mode=0o600)
    text = text.replace(
        f'token_file = "{tmp_path}/b.token"', f'token_file = "{tmp_path}/b.token"\nca = "{tmp_path}/ca"'
    )
    text += f"""
[hooks]
on_turn_end = ["{tmp_path}/python", "{tmp_path}/notify.py", "a secret"]

[agents.unfenced]
command = ["./agent.py"]
cwd = "{tmp_path}"
"""
    path.write_text(text)
    (tmp_path / "ca").touch()
    found = protected(load_config(path))
    assert {name: what for name, what in found.items() if name.startswith(str(tmp_path))} == {
        f"{tmp_path}/python": "of the hook on_turn_end",
        f"{tmp_path}/notify.py": "of the hook on_turn_end",
        f"{tmp_path}/./agent.py": "of the agent unfenced, which has no fence",
        f"{tmp_path}/ca": "a certificate of the configuration",
    }
    assert found[sys.executable] == "of the gateway: its Python"
    assert "bubblewrap" in found.values()


def test_an_agent_that_the_gateway_has_installed_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "state/installed-agents/tool"
    section = AgentSection(command=(f"{folder}/1-abc/tool",), fence="on", cwd=tmp_path / "work")
    config = make_config(tmp_path / "state", agents={"a": section})
    options = fence_options(section, config, SessionReach("ann"), None)
    assert options is not None
    assert options.installed == str(folder)
    assert options.readable == (str(tmp_path / "work"),)


def test_a_fence_that_is_switched_off_may_still_have_processes(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    text = CONFIG.format(root=tmp_path)
    for name in ("mine", "yours"):
        (tmp_path / name).mkdir()
    for name in ("env", "b.token", "c.token", "cluster.token", "password"):
        (tmp_path / name).touch(mode=0o600)
    path.write_text(text)
    assert may_have_fences(load_config(path))
    path.write_text(text.replace('fence = "on"', 'fence = "off"'))
    assert not may_have_fences(load_config(path))
    (tmp_path / "state/scratch").mkdir(parents=True)
    assert may_have_fences(load_config(path))


def test_people_whom_a_door_names_have_its_credential_though_no_token_is_in_a_file(tmp_path: Path) -> None:
    config = make_config(tmp_path, "ws://127.0.0.1:0")
    section = DoorSection(url=parse_target("door.example"), token_file=tmp_path / "home.door")
    lending = replace(config, doors={"home": section})
    assert has_credential("me/alice", [], lending, "me")
    assert usable_workspaces("me/alice", [], lending, "me") is None
    for identity, other in (("me/alice", config), ("alice", lending), ("you/alice", lending)):
        assert not has_credential(identity, [], other, "me")
        assert usable_workspaces(identity, [], other, "me") == ()
