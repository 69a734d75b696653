"""Installing on another machine, whose ssh, uv and pipx are scripts of the test's own."""

from pathlib import Path

import pytest
import trio

from acp_gateway.client.pairing import pairing
from acp_gateway.client.pairing.pairing import Installed, install
from acp_gateway.client.ssh import SshTarget
from acp_gateway.config.addresses import parse_target
from acp_gateway.errors import ConfigError, ProtocolError, Unreachable
from tests.doubles import TIMEOUT

BOX = SshTarget(parse_target("ssh://ann@box"))
INSTALLER = '#!/bin/sh\necho "$0 $*" >>"$HOME/log"; for last; do :; done; cat "$last" >"$HOME/got"; echo chatter\n'


class Box:
    """A machine with a home, reached by a program that is called ssh."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "home/.local/bin"
        self.bin.mkdir(parents=True)
        self.home = folder / "home"
        self.ssh = folder / "ssh"
        self.does('exec sh -c "$last"')

    def does(self, line: str) -> None:
        self.ssh.write_text(f"#!/bin/sh\nexport HOME={self.home}\nfor last; do :; done\n{line}\n")
        self.ssh.chmod(0o755)

    def has(self, program: str, script: str = INSTALLER) -> None:
        (self.bin / program).write_text(script)
        (self.bin / program).chmod(0o755)

    async def install(self) -> Installed:
        with trio.fail_after(TIMEOUT):
            return await install(BOX, "x-1.0-py3-none-any.whl", b"wheel" * 20_000, "1.0")


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    # No uv or pipx of this machine.
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "cat", "mktemp", "rm"):
        (tools / name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", f"{tmp_path}:{tools}")
    return Box(tmp_path)


@pytest.mark.parametrize(
    ("programs", "by", "words"),
    [(("uv", "pipx"), "uv", "tool install --force"), (("pipx",), "pipx", "install --force")],
)
async def test_the_wheel_is_handed_to_uv_or_pipx(box: Box, programs: tuple[str, ...], by: str, words: str) -> None:
    for program in programs:
        box.has(program)
    assert await box.install() == Installed(by)
    assert (box.home / "got").read_bytes() == b"wheel" * 20_000
    log = (box.home / "log").read_text()
    assert f"{by} {words} " in log
    assert log.endswith("/x-1.0-py3-none-any.whl\n")
    # The folder of the wheel is gone.
    assert not await trio.Path(log.split()[-1]).exists()


async def test_the_same_version_is_left_alone_and_another_replaced(box: Box) -> None:
    box.has("uv")
    box.has("acp-gateway", '#!/bin/sh\necho "acp-gateway, version 1.0"\n')
    assert await box.install() == Installed(None)
    assert not (box.home / "log").exists()
    box.has("acp-gateway", '#!/bin/sh\necho "acp-gateway, version 0.9"\n')
    assert await box.install() == Installed("uv")


async def test_without_an_installer_it_says_which_to_install(box: Box) -> None:
    with pytest.raises(ConfigError, match="neither uv nor pipx: install one of them there"):
        await box.install()


async def test_an_installer_that_fails_is_quoted(box: Box) -> None:
    box.has("pipx", "#!/bin/sh\necho Requires Python 3.11 >&2; exit 1\n")
    with pytest.raises(ConfigError, match=r"Requires Python 3.11; the installation there failed"):
        await box.install()


async def test_a_login_that_fails_is_an_error_of_ssh(box: Box) -> None:
    box.does("echo no route >&2; exit 255")
    with pytest.raises(Unreachable, match="no route"):
        await box.install()


async def test_an_end_that_is_not_understood_is_an_error(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "_INSTALL", "cat >/dev/null; echo what")
    with pytest.raises(ProtocolError, match="not understood: 'what'"):
        await box.install()


def test_the_script_has_nothing_in_it_that_shells_read_differently() -> None:
    assert not set("'\\!\n") & set(pairing._INSTALL)
