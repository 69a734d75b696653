"""`acp-gateway cp` with a real gateway: from the box and back, over TLS, and with a guest's token."""

import asyncio
import os
import subprocess
from pathlib import Path

from tests.end_to_end.parties import party, run
from tests.kit.running import ENVIRONMENT, PROGRAM, WORK, RunningGateway


def copy(gateway: RunningGateway, token: Path, *places: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*PROGRAM, "cp", *places, "--token-file", str(token), "--pin", gateway.pin]
    return subprocess.run(command, env=ENVIRONMENT, input=stdin, capture_output=True, check=False, timeout=120)


def test_files_are_copied_from_the_folder_of_a_session_and_back(gateway: RunningGateway, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    box = gateway.urls["wss"]
    folder = WORK / tmp_path.name
    folder.mkdir()

    async def talk() -> None:
        async with party(gateway, "wss") as owner:
            session = (await owner.agent.new_session(cwd=str(folder), mcp_servers=[])).session_id
            guest = await asyncio.to_thread(gateway.save_token, "share", session, "--token", "--observe", "--files")
            closed = await asyncio.to_thread(gateway.save_token, "share", session, "--token")
            await asyncio.to_thread(judge, session, guest, closed)

    def judge(session: str, guest: Path, closed: Path) -> None:
        there = ("--session", session)
        (tmp_path / "weights.bin").write_bytes(content)
        done = copy(gateway, gateway.token_file, str(tmp_path / "weights.bin"), f"{box}:", *there)
        assert (done.returncode, done.stderr) == (0, b"")
        assert (folder / "weights.bin").read_bytes() == content
        again = copy(gateway, gateway.token_file, str(tmp_path / "weights.bin"), f"{box}:", *there)
        assert (again.returncode, b"--force replaces it" in again.stderr) == (4, True)
        done = copy(gateway, gateway.token_file, f"{box}:weights.bin", "-", *there)
        assert (done.returncode, done.stdout == content) == (0, True)
        done = copy(gateway, guest, f"{box}:weights.bin", str(tmp_path / "back.bin"))
        assert (done.returncode, done.stderr) == (0, b"")
        assert (tmp_path / "back.bin").read_bytes() == content
        refused = copy(gateway, closed, f"{box}:weights.bin", "-")
        assert (refused.returncode, b"share SESSION --files" in refused.stderr) == (4, True)
        refused = copy(gateway, guest, "-", f"{box}:new", stdin=b"x")
        assert refused.returncode != 0
        assert not (folder / "new").exists()
        secret = copy(gateway, gateway.token_file, f"{box}:.env", "-", *there)
        assert (secret.returncode, b"key or a login" in secret.stderr) == (4, True)

    run(talk())
