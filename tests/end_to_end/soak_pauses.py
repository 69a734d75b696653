"""Pauses of editors whose door is killed in the middle of their turns, again and again.

The turns go on at the node. Each editor has all updates in order and once, and each prompt the agent's own end. A pause
is counted from the moment when the door listens again.

    python -m tests.end_to_end.soak_pauses [KILLS]
"""

import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import trio

from tests.end_to_end.soak import Editor
from tests.end_to_end.soak_machines import Machine
from tests.kit.free_ports import free_port
from tests.kit.running import AGENTS
from tests.kit.seen import faults_of

PLACES = ("tcp", "tcp", "wss", "wss")
"""Transports of the editors to the door."""

COUNT, AT_ONCE = 2000, 1
"""Updates of a turn, which takes some seconds, and of a write."""

MOST_PAUSE = 1.6
"""Seconds of the 95th percentile of the pauses, on a machine with nothing else to do: as after a cut."""

PATIENCE = 60.0
"""Seconds after which an editor counts as lost."""


class Pauses:
    """A door, its node, and the editors that prompt through it."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        home = directory / "agent"
        home.mkdir()
        command = [sys.executable, "-I", "-S", str(AGENTS / "soaking_agent.py"), str(home), "", "1"]
        agents = f'[agents.mine]\ncommand = {json.dumps(command)}\nscope = "connection"\n'
        self.home = home
        self.node = Machine(directory / "node", agents, 'default_agent = "mine"', {"tcp": free_port()})
        stack.callback(self.node.end)
        section = (
            f'[nodes.node]\nurl = "{self.node.gateway.urls["wss"]}"\npin = "{self.node.pin}"\n'
            f'token_file = "{self.node.gateway.token_file}"\n'
        )
        ports = {place: free_port() for place in set(PLACES)}
        self.door = Machine(directory / "door", section, 'default_agent = "node/mine"', ports)
        stack.callback(self.door.end)
        self.pauses: list[float] = []
        self.faults: list[str] = []
        self.prompts = 0

    async def run(self, kills: int) -> None:
        """Kill the door so many times, and compare what each editor has seen."""
        async with trio.open_nursery() as nursery:
            for machine in (self.node, self.door):
                nursery.start_soon(machine.read_log)
            editors = []
            for number, place in enumerate(PLACES):
                command = self.door.gateway.connect_command(place, "--agent", "node/mine")
                editors.append(Editor(f"{number} ({place})", command))
                await nursery.start(editors[-1].run)
                await editors[-1].open()
            over = trio.Event()
            async with trio.open_nursery() as prompting:
                for editor in editors:
                    prompting.start_soon(self.prompt, editor, over)
                for _ in range(kills):
                    await self.kill(editors)
                over.set()
            for editor in editors:
                said = (self.home / f"{editor.session}.said").stat().st_size
                found = faults_of(editor.seen, list(range(1, said + 1)))
                found += ["something is missing, and was told"] if None in editor.seen else []
                self.faults += [f"editor {editor.name}: {fault}" for fault in found]
            nursery.cancel_scope.cancel()

    async def prompt(self, editor: Editor, over: trio.Event) -> None:
        """Prompt again and again."""
        while not over.is_set():
            answer = await editor.prompt(COUNT, AT_ONCE)
            self.prompts += 1
            if answer.get("result") != {"stopReason": "end_turn"}:
                self.faults.append(f"editor {editor.name}: a prompt was answered with {answer}")

    async def kill(self, editors: list[Editor]) -> None:
        """Kill the door once all editors hear the agent, and measure the pause of each."""
        for editor in editors:
            await self.next_update(editor)
        process = self.door.gateway.process
        process.send_signal(signal.SIGKILL)
        await trio.to_thread.run_sync(process.wait, 60)
        await self.door.start_again()
        back = trio.current_time()
        async with trio.open_nursery() as nursery:
            for editor in editors:
                nursery.start_soon(self.measure, editor, back)

    async def measure(self, editor: Editor, back: float) -> None:
        """Note the time from the door's return to an editor's next update."""
        await self.next_update(editor)
        self.pauses.append(trio.current_time() - back)

    async def next_update(self, editor: Editor) -> None:
        """Wait for an editor's next update."""
        before = len(editor.seen)
        with trio.move_on_after(PATIENCE) as patience:
            while len(editor.seen) == before:
                await editor.change.wait()
        if patience.cancelled_caught:
            self.faults.append(f"editor {editor.name}: it heard nothing for {PATIENCE:g} s")


def percentile(pauses: Sequence[float]) -> float:
    """Return the 95th percentile of pauses."""
    return statistics.quantiles(pauses, n=20)[-1]


def too_long(pauses: Sequence[float]) -> list[str]:
    """Return the fault of pauses that are too long."""
    found = percentile(pauses)
    return [f"p95 of the pauses is {found:.2f} s, more than {MOST_PAUSE} s"] if found > MOST_PAUSE else []


def main() -> int:
    """Return the exit code: 1 where something was found, or the pauses are too long."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory(prefix="acp-pauses-") as directory, ExitStack() as stack:
        scene = Pauses(Path(directory), stack)
        trio.run(scene.run, kills)
    faults = scene.faults + too_long(scene.pauses)
    sys.stdout.write(
        f"{kills} kills, {len(scene.pauses)} pauses after the door was back: median "
        f"{statistics.median(scene.pauses):.2f} s, p95 {percentile(scene.pauses):.2f} s, most "
        f"{max(scene.pauses):.2f} s; {scene.prompts} prompts, load {os.getloadavg()[0]:.1f}; {len(faults)} faults\n"
    )
    sys.stdout.write("".join(f"  {fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
