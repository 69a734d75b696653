"""Runs a client in a process of its own for each scenario, plays its agent and its user, and records the dialogues."""

import math
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio
from trio.abc import SendStream

from acp_conformance.agent_listener import AgentListener, LentStreams, open_listener
from acp_conformance.agent_script import Action, AgentScript
from acp_conformance.client_script import Scenario, load_fixture
from acp_conformance.dialogue import FOR_STDERR, Dialogue, Ending, Line
from acp_conformance.runner import LineSplitter, RunLimits, Tail, open_program, reap, send_pieces
from acp_gateway.errors import AgentError, ConfigError

AGENT_PLACE: Final = "{agent}"
"""Placeholder for the agent's command in the command of a client."""

PROMPT_PLACE: Final = "{prompt}"
"""Placeholder for the text of a prompt there; without it the prompts are lines on the client's stdin."""

VARIABLE: Final = "ACP_AGENT_COMMAND"
"""Environment variable of the client with the agent's command."""

FILE: Final = "acp-gateway-check.txt"
"""Name of the file that clients read and write, in the directory where they begin."""

FILE_TEXT: Final = "four\nfive\nsix\n"
"""Content of that file before a client writes it."""

LOST: Final = 3
"""Exit code of an agent that is lost."""


LAST_WORDS: Final = 0.5
"""Seconds in which the rest of the stdin of an agent is read that was killed."""


@dataclass(frozen=True)
class User:
    """The lines that the user of a client writes to its stdin."""

    prompt: str = "Look at this project."
    allow: str | None = None
    """None to write nothing when a permission is to be granted: the client decides by itself."""
    reject: str | None = None
    cancel: str | None = None
    """None to send SIGINT to the client."""


async def run_client_scenarios(
    command: Sequence[str],
    scenarios: Sequence[Scenario],
    *,
    cwd: str | None = None,
    user: User | None = None,
    agent: Path | None = None,
    limits: RunLimits | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Dialogue]:
    """Return the dialogues of a client by scenario, one after the other.

    Args:
        command: the client's program and its arguments, with `AGENT_PLACE` where the agent's command belongs.
        cwd: the directory in which the client begins; None for the present one.
        agent: the file of the agent's command, in place of a temporary one.
        progress: called with the name of each scenario before it begins.

    Raises `AgentError` if the client cannot be started, or starts no agent in the first scenario, and `ConfigError` if
    a file cannot be written. Cancelling ends the client's process group.
    """
    dialogues: dict[str, Dialogue] = {}
    async with open_listener(agent) as listener:
        with _file_in(Path(cwd or os.curdir)):
            for scenario in scenarios:
                progress(scenario.name)
                run = _Run(scenario, listener, user or User(), limits or RunLimits())
                dialogues[scenario.name] = dialogue = await run.run(command, cwd)
                if len(dialogues) == 1 and not dialogue.lines and not run.agent_started:
                    raise AgentError(_no_agent(command, dialogue))
    return dialogues


def _no_agent(command: Sequence[str], dialogue: Dialogue) -> str:
    last = dialogue.stderr.strip().rpartition("\n")[2]
    said = f"; stderr: {last}" if last else ""
    return f"{command[0]} starts no agent: put {AGENT_PLACE} into its command, or have it run ${VARIABLE}{said}"


@contextmanager
def _file_in(directory: Path) -> Iterator[None]:
    """Write the file that clients read, and remove it at the end."""
    path = directory / FILE
    try:
        with path.open("x") as file:
            file.write(FILE_TEXT)
    except FileExistsError:
        raise ConfigError("is there already: the check would overwrite it", file=str(path)) from None
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error.strerror}; --cwd DIR chooses another directory", file=str(path)
        ) from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


class _Agent:
    """One start of the agent by the client, and its dialogue."""

    def __init__(self, scenario: Scenario, streams: LentStreams, limits: RunLimits) -> None:
        self.script = AgentScript(load_fixture(scenario.fixture), scenario.chunk)
        self.lines: list[Line] = []
        self.ended = trio.Event()
        """Set when the client has closed the stdin, or the process is gone."""
        self.overflow = False
        self._scenario = scenario
        self._streams = streams
        # True while it can't write to stderr.
        self._blocked = False
        self._splitter = LineSplitter(limits.output_size)
        self._outgoing, self._to_write = trio.open_memory_channel[bytes](math.inf)

    @property
    def waiting_for(self) -> str:
        """Name of what the agent is waiting for."""
        return FOR_STDERR if self._blocked else self.script.waiting_for

    async def serve(self, began: float, news: Callable[[], object]) -> None:
        """Play the script until the client closes the stdin. `news` is called after each line, and at the end.

        Cancelling closes the streams.
        """
        try:
            async with trio.open_nursery() as nursery:
                if self._scenario.stderr:
                    self._blocked = True
                    await self._streams.write_noise(self._scenario.stderr)
                    self._blocked = False
                nursery.start_soon(self._write)
                nursery.start_soon(self._until_gone, nursery.cancel_scope)
                await self._listen(began, news)
                nursery.cancel_scope.cancel()
        finally:
            self.ended.set()
            await self._streams.aclose(LOST if self._scenario.lost else 0)
            news()

    async def _until_gone(self, scope: trio.CancelScope) -> None:
        await self._streams.until_gone()
        # A client may write and then kill its agent at once.
        scope.deadline = trio.current_time() + LAST_WORDS

    async def _listen(self, began: float, news: Callable[[], object]) -> None:
        def record(text: bytes, *, outgoing: bool) -> None:
            self.lines.append(Line(outgoing, text, trio.current_time() - began))

        def send(messages: list[bytes]) -> None:
            for message in messages:
                record(message, outgoing=False)
                self._outgoing.send_nowait(message + b"\n")

        send([self._scenario.first] if self._scenario.first else [])
        while not self.overflow:
            try:
                data = await self._streams.stdin.receive_some(65536)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            for line in self._splitter.feed(data):
                record(line, outgoing=True)
                send(self.script.receive(line))
            self.overflow = self._splitter.overflow
            news()
            if not data:
                return

    async def _write(self) -> None:
        async for data in self._to_write:
            if not await send_pieces(self._streams.stdout, data, self._scenario.piece):
                return  # The client has closed it, which the stdin tells.
            if self._scenario.lost and self.script.done and not self._to_write.statistics().current_buffer_used:
                await self._streams.aclose(LOST)
                return


class _Run:
    """One process of the client."""

    def __init__(self, scenario: Scenario, listener: AgentListener, user: User, limits: RunLimits) -> None:
        self._scenario = scenario
        self._listener = listener
        self._user = user
        self._limits = limits
        self._agents: list[_Agent] = []
        self._actions: set[str] = set()
        self._began = trio.current_time()
        self._news = trio.lowlevel.ParkingLot()
        self._stderr = Tail(limits.stderr_size)

    @property
    def agent_started(self) -> bool:
        """True if the client has started the agent."""
        return bool(self._agents)

    async def run(self, command: Sequence[str], cwd: str | None) -> Dialogue:
        """Run the client and return its longest dialogue: some start an agent only to ask for its version."""
        places = {AGENT_PLACE: self._listener.command, PROMPT_PLACE: self._user.prompt}
        words = [_filled(word, places) for word in command]
        process, stdin, stdout, stderr = await open_program(words, cwd, os.environ | {VARIABLE: self._listener.command})
        exited = released = False
        ending: Ending = "timeout"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Tail(0).read, stdout)
                nursery.start_soon(self._stderr.read, stderr)
                nursery.start_soon(self._accept, nursery)
                with trio.move_on_after(self._limits.timeout):
                    ending = await self._talk(process, stdin, prompt_given=PROMPT_PLACE in "\0".join(command))
                waiting_for = self._longest().waiting_for if self._agents else "the start of the agent"
                await stdin.aclose()
                exited = await self._wait_for(process.wait)
                code = process.returncode
                if not exited:
                    with suppress(ProcessLookupError):
                        process.terminate()
                    await self._wait_for(process.wait)
                released = await self._wait_for(self._until_released)
                nursery.cancel_scope.cancel()
        finally:
            await reap(process)
        longest = self._longest() if self._agents else None
        lines = tuple(longest.lines) if longest is not None else ()
        if longest is not None and longest.overflow:
            ending = "overflow"
        return Dialogue(lines, ending, waiting_for, exited, code, self._stderr.text, released, frozenset(self._actions))

    async def _wait_for(self, event: Callable[[], Awaitable[object]]) -> bool:
        """Return True if something happens in the time for the end."""
        with trio.move_on_after(self._limits.exit_timeout) as time:
            await event()
        return not time.cancelled_caught

    async def _until_released(self) -> None:
        for agent in self._agents:
            await agent.ended.wait()

    async def _accept(self, nursery: trio.Nursery) -> None:
        while True:
            streams = await self._listener.accept()
            agent = _Agent(self._scenario, streams, self._limits)
            self._agents.append(agent)
            nursery.start_soon(agent.serve, self._began, self._news.unpark_all)

    async def _talk(self, process: trio.Process, stdin: SendStream, *, prompt_given: bool) -> Ending:
        """Do what the user has to do, until a script is done, or the client has ended or given up its agents."""
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await process.wait()
                self._news.unpark_all()

            nursery.start_soon(watch)
            try:
                while True:
                    actions = [action for agent in self._agents for action in agent.script.take_actions()]
                    for action in actions:
                        if action == "end":
                            if self._scenario.lost:
                                await self._until_released()
                                await trio.sleep(self._limits.reaction)
                            return "finished"
                        await self._act(action, process, stdin, prompt_given=prompt_given)
                    if actions:
                        continue
                    if any(agent.overflow for agent in self._agents):
                        return "overflow"
                    gone = all(agent.ended.is_set() for agent in self._agents)
                    # An agent that has just been started has not announced itself.
                    if process.returncode is not None and gone and self._agents:
                        return "ended"
                    waiting = (
                        self._limits.exit_timeout
                        if self._has_given_up() or process.returncode is not None
                        else math.inf
                    )
                    with trio.move_on_after(waiting) as patience:
                        await self._news.park()
                    if patience.cancelled_caught:
                        return "ended" if process.returncode is not None else "closed"
            finally:
                nursery.cancel_scope.cancel()

    def _has_given_up(self) -> bool:
        """Return True if the client has closed the stdin of all its agents, and talked to one of them."""
        return all(agent.ended.is_set() for agent in self._agents) and any(agent.lines for agent in self._agents)

    async def _act(self, action: Action, process: trio.Process, stdin: SendStream, *, prompt_given: bool) -> None:
        text = {"allow": self._user.allow, "reject": self._user.reject, "cancel": self._user.cancel}.get(action)
        if action == "prompt":
            text = None if prompt_given else self._user.prompt
        if text is None and action != "cancel":
            return
        await trio.sleep(self._limits.reaction)
        if text is None:
            process.send_signal(signal.SIGINT)
        self._actions.add(action)
        if text is not None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await stdin.send_all(text.encode() + b"\n")

    def _longest(self) -> _Agent:
        return max(self._agents, key=lambda agent: len(agent.lines))


def _filled(word: str, places: dict[str, str]) -> str:
    for place, text in places.items():
        word = word.replace(place, text)
    return word
