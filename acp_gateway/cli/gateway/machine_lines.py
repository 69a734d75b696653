"""The lines of `status` about the machine. Building the program imports its commands, without msgspec: not this."""

from typing import Any

from acp_gateway.made.machine import Gpu, Holder, read_told, size_text
from acp_gateway.printable import counted, printable

TITLE_SIZE = 40
"""Characters of the title of a session that holds a GPU."""


def machine_lines(told: Any) -> list[str]:
    """Say how busy a machine is: one line, and one for each GPU; none of a gateway that does not tell."""
    machine = read_told(told, holders=True)
    if machine is None:
        return []
    parts = [f"{machine.busy:.1f} of {counted(machine.cpus, 'processor')} busy"]
    if machine.memory is not None:
        free = machine.memory.free
        parts.append(
            f"memory {size_text(machine.memory.total)}" + ("" if free is None else f", {size_text(free)} free")
        )
    parts += [
        f"disk of {printable(it.path)} {size_text(it.free)} of {size_text(it.total)} free" for it in machine.disks
    ]
    problem = [] if machine.problem is None else [f"problem: {printable(machine.problem)}"]
    return ["machine: " + "; ".join(parts), *(_gpu_line(*each) for each in enumerate(machine.gpus)), *problem]


def _gpu_line(index: int, gpu: Gpu) -> str:
    parts = [f"GPU {index} {printable(gpu.name)}: {'free' if gpu.is_free else 'in use'}"]
    parts += [] if gpu.use is None else [f"{gpu.use:.0%} busy"]
    parts += [] if gpu.used is None or gpu.total is None else [f"{size_text(gpu.used)} of {size_text(gpu.total)}"]
    parts += [] if gpu.temperature is None else [f"{gpu.temperature} °C"]
    return ", ".join(parts + [_holder_text(holder) for holder in gpu.holders])


def _holder_text(holder: Holder) -> str:
    size = "" if holder.memory is None else f" {size_text(holder.memory)}"
    title = "" if holder.title is None else f" ({printable(holder.title, size=TITLE_SIZE)})"
    session = "" if holder.session_id is None else f" in session {printable(holder.session_id)}{title}"
    return f"{printable(holder.agent_type or 'other programs')}{session}{size}"
