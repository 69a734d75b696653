"""Agents of others in a fence, with the folders that the table of known agents gives them, and with a fresh home.

None is logged in: in a fence it is to answer as it does without one. Those that take a model at any address edit files.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.agent_search import KNOWN, AcpAgent
from acp_gateway.config.load import load_config
from acp_gateway.diagnosis.agent_trial import try_agent
from acp_gateway.fence import bubblewrap, landlock
from tests.end_to_end.test_fences import Fenced
from tests.interop.model_server import model_server
from tests.interop.sdk_clients import INSTALLED
from tests.interop.test_opencode import binary, settings

pytestmark = [pytest.mark.interop, pytest.mark.skipif(sys.platform != "linux", reason="fences are Linux's")]

MODULES = INSTALLED / "agents" / "node_modules"

PROGRAMS = (
    "auggie",
    "claude-agent-acp",
    "claude-code-acp",
    "codex-acp",
    "copilot",
    "droid",
    "gemini",
    "kimi",
    "opencode",
    "qodercli",
    "qwen",
    "vibe-acp",
)
"""Programs of the table of known agents that npm or PyPI has for this platform."""

MEANS = [
    *(["landlock"] if landlock.abi() else []),
    *(["bubblewrap"] if bubblewrap.find() is not None else []),
]
"""The means for a fence that this machine has."""

QUIET = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
"""Variables that keep agents from fetching what the tests do not need."""

TIMEOUT = 60.0

BRIEF = {"eof_grace": 0.1, "term_grace": 1.0}
"""Seconds for agents to end by themselves: some take ten."""


def installed(program: str) -> str:
    """Return the path of an agent's program; skip the test if none is installed."""
    if program == "opencode":
        return binary()
    folders = [MODULES / ".bin", *INSTALLED.glob("pypi/*/bin")]
    found = shutil.which(program, path=os.pathsep.join(map(str, folders)))
    if found is None:
        pytest.skip(f"{program}: not installed on this platform")
    return found


async def answers(program: str, fence: str, folder: Path) -> list[str]:
    """Run an agent once with a home of its own, and return what it answered and what its fence refused."""
    path, known = installed(program), KNOWN[program]
    assert isinstance(known, AcpAgent)
    for name in ("home", "work", "state"):
        (folder / name).mkdir(parents=True)
    env = {"HOME": str(folder / "home"), **QUIET}
    sections: dict[str, dict[str, Any]] = {
        "gateway": {"state_dir": str(folder / "state")},
        "workspaces.work": {"root": str(folder / "work")},
        "agents.tried": {
            "command": [path, *known.arguments[0]],
            "fence": fence,
            "initialize_timeout": TIMEOUT,
            **BRIEF,
        },
        "agents.tried.env": env,
    }
    file = folder / "config.toml"
    lines = [
        f"[{section}]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
        for section, options in sections.items()
    ]
    file.write_text("".join([*lines, '[[listen]]\nurl = "tcp://127.0.0.1:0"\n']))
    config = load_config(file)
    section = config.agents["tried"]
    said = await try_agent("tried", section, config, {"PATH": os.environ["PATH"]}, folder / "state")
    return [line.text.replace(f"fenced by {fence}", "without a fence").replace(str(folder), "") for line in said]


@pytest.mark.parametrize("program", PROGRAMS)
async def test_an_agent_answers_in_its_fence_as_without_one(program: str, tmp_path: Path) -> None:
    found: dict[str, list[str]] = {}

    async def note(fence: str) -> None:
        found[fence] = await answers(program, fence, tmp_path / fence)

    installed(program)
    async with trio.open_nursery() as nursery:
        for fence in ("off", *MEANS):
            nursery.start_soon(note, fence)
    assert "answers initialize" in found["off"][0]
    assert "session/new" in found["off"][0]
    for by in MEANS:
        assert found[by] == found["off"], by


def for_opencode(home: Path, url: str) -> dict[str, str]:
    (home / ".config/opencode").mkdir(parents=True)
    (home / ".config/opencode/opencode.json").write_text(settings(url, "allow"))
    return QUIET


def for_qwen(_: Path, url: str) -> dict[str, str]:
    return {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": url, "OPENAI_MODEL": "check"}


def for_vibe(home: Path, url: str) -> dict[str, str]:
    (home / ".vibe").mkdir()
    options = ('active_model = "check"', "enable_telemetry = false", "enable_update_checks = false")
    provider = ("[[providers]]", 'name = "check"', f'api_base = "{url}"')
    model = ("[[models]]", 'name = "check"', 'provider = "check"', 'alias = "check"')
    (home / ".vibe/config.toml").write_text("\n".join([*options, *provider, *model]))
    return {}


def for_pi(home: Path, url: str) -> dict[str, str]:
    (home / ".pi/agent").mkdir(parents=True)
    provider = {"baseUrl": url, "api": "openai-completions", "apiKey": "none", "models": [{"id": "check"}]}
    (home / ".pi/agent/models.json").write_text(json.dumps({"providers": {"check": provider}}))
    (home / ".pi/agent/settings.json").write_text(json.dumps({"defaultProvider": "check", "defaultModel": "check"}))
    return {"PI_OFFLINE": "1"}


def for_kimi(home: Path, url: str) -> dict[str, str]:
    (home / ".kimi/credentials").mkdir(parents=True)
    # It wants a login in its folder, also for a model that needs none.
    login = {"access_token": "x", "refresh_token": "x", "expires_at": 2**32, "scope": "", "token_type": "Bearer"}
    (home / ".kimi/credentials/kimi-code.json").write_text(json.dumps({**login, "expires_in": 2**31}))
    options = ('default_model = "check"', "default_yolo = true")
    provider = ("[providers.check]", 'type = "openai_legacy"', f'base_url = "{url}"', 'api_key = "none"')
    model = ("[models.check]", 'provider = "check"', 'model = "check"', "max_context_size = 100000")
    (home / ".kimi/config.toml").write_text("\n".join([*options, *provider, *model]))
    return {}


def for_claude(home: Path, url: str) -> dict[str, str]:
    (home / ".claude").mkdir()
    # By default, another model decides on what the tool runs.
    (home / ".claude/settings.json").write_text(json.dumps({"permissions": {"defaultMode": "default"}}))
    more = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    return {"ANTHROPIC_BASE_URL": url.removesuffix("/v1"), "ANTHROPIC_API_KEY": "none", **more}


def for_codex(home: Path, url: str) -> dict[str, str]:
    (home / ".codex").mkdir()
    # Its own sandbox cannot be made in a fence.
    options = ('model = "check"', 'model_provider = "check"', 'sandbox_mode = "danger-full-access"')
    rules = ('approval_policy = "never"', 'web_search = "disabled"')
    provider = ("[model_providers.check]", 'name = "check"', f'base_url = "{url}"', 'wire_api = "responses"')
    (home / ".codex/config.toml").write_text("\n".join([*options, *rules, *provider]))
    return {"OPENAI_API_KEY": "none", "CODEX_API_KEY": "none"}


def for_gemini(home: Path, url: str) -> dict[str, str]:
    (home / ".gemini").mkdir()
    options = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False}}
    (home / ".gemini/settings.json").write_text(json.dumps(options))
    address = {"GOOGLE_GEMINI_BASE_URL": url.removesuffix("/v1"), "GEMINI_API_KEY": "none"}
    return {**address, "GEMINI_MODEL": "gemini-2.5-flash"}


def for_copilot(_: Path, url: str) -> dict[str, str]:
    provider = {"COPILOT_PROVIDER_BASE_URL": url, "COPILOT_PROVIDER_TYPE": "openai", "COPILOT_MODEL": "check"}
    return {**provider, "COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false"}


def for_droid(home: Path, url: str) -> dict[str, str]:
    (home / ".factory").mkdir()
    model = {"model": "check", "displayName": "check", "baseUrl": url, "apiKey": "none", "maxOutputTokens": 1000}
    options = {"customModels": [{**model, "provider": "generic-chat-completion-api"}], "model": "custom:check-0"}
    (home / ".factory/settings.json").write_text(json.dumps(options))
    return {"FACTORY_API_KEY": "fk-none", "FACTORY_AIRGAP_ENABLED": "1", "FACTORY_DROID_AUTO_UPDATE_ENABLED": "false"}


MODELS = {
    "claude-agent-acp": for_claude,
    "claude-code-acp": for_claude,
    "codex-acp": for_codex,
    "copilot": for_copilot,
    "droid": for_droid,
    "gemini": for_gemini,
    "kimi": for_kimi,
    "opencode": for_opencode,
    "qwen": for_qwen,
    "vibe-acp": for_vibe,
}
"""The agents that use a model at any address, with a function that writes their settings and returns variables."""


@pytest.mark.parametrize("by", MEANS)
@pytest.mark.parametrize("program", MODELS)
def test_an_agent_edits_its_workspace_is_refused_what_is_outside_and_loads_its_session_after_a_restart(
    program: str, by: str, tmp_path: Path
) -> None:
    known, home = KNOWN[program], tmp_path / "home"
    assert isinstance(known, AcpAgent)
    home.mkdir()
    with model_server() as url:
        env = {"HOME": str(home), **MODELS[program](home, url)}
        options = "[agents.a.env]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in env.items())
        fenced = Fenced(tmp_path, by, command=[installed(program), *known.arguments[0]], options=options)
        text = f"run: echo edited >{tmp_path}/work/new; echo edited >{tmp_path}/other/new"
        gateway = fenced.start()
        editor = fenced.editor()
        try:
            session = editor.open(tmp_path / "work")["sessionId"]
            prompt = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
            assert editor.request("session/prompt", prompt)["stopReason"] == "end_turn"
        finally:
            editor.close()
            gateway.stop()
        assert (tmp_path / "work/new").read_text() == "edited\n"
        assert not (tmp_path / "other/new").exists()
        # Gemini shows no output of a tool: its model tells it.
        told = [line for line in editor.told if '"tool_call_update"' in line or '"agent_message_chunk"' in line]
        assert any(f"/new: {refusal}" in line for line in told for refusal in ("Permission denied", "No such file"))
        gateway = fenced.start()
        editor = fenced.editor()
        try:
            loaded = {"sessionId": session, "cwd": str(tmp_path / "work"), "mcpServers": []}
            answer = editor.request("session/load", loaded)
        finally:
            editor.close()
            gateway.stop()
        if program == "gemini":
            # Without a fence, too: this release finds no session after a restart.
            assert answer["data"]["details"] == "No previous sessions found for this project."
            return
        assert "code" not in answer
        assert any("run: echo edited" in line for line in editor.told if '"user_message_chunk"' in line)
