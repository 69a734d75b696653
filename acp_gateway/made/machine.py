"""Reads how busy the machine is: its processors, memory, disks and GPUs.

All of it is read when a client asks, in threads: a lost network file system, or a driver that hangs, may never answer.
GPUs are read by NVIDIA's library for Python, the extra `gpu`, which is imported where a driver is.
"""

import importlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from acp_gateway import INSTALL_ALL

MAX_GPUS: Final = 64
"""Maximum GPUs that are read; machines of today have 16."""

MAX_PROCESSES: Final = 256
"""Maximum processes of one GPU that are read."""

MAX_DISKS: Final = 16
"""Maximum disks of workspaces that are read: each one is a line in a terminal."""

TEXT: Final = 256
"""Maximum characters of a name."""

FREE_BELOW: Final = 0.1
"""Part of a GPU, of its time and its memory, below which it counts as free: a desktop uses some of one."""

PROC: Final = Path("/proc")

DRIVER_FILES: Final = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Files that a driver of NVIDIA has made, on Linux and in Windows' Linux."""

NO_LIBRARY: Final = f"the GPUs are not read without NVIDIA's library: `{INSTALL_ALL}` in a checkout"

NO_ANSWER: Final = "the driver of the GPUs does not answer: see whether `nvidia-smi` does"

_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Text = Annotated[str, msgspec.Meta(max_length=TEXT)]
_Path = Annotated[str, msgspec.Meta(max_length=4096)]


class Space(msgspec.Struct, frozen=True):
    """Bytes of memory or of a disk."""

    total: _Bytes
    free: _Bytes | None
    """None where the system does not tell."""


class Disk(msgspec.Struct, frozen=True):
    """The disk of a workspace."""

    path: _Path
    """The workspace."""
    total: _Bytes
    free: _Bytes


class Holder(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A session, an agent or other programs that hold memory of a GPU."""

    memory: _Bytes | None = None
    """Bytes; None where the driver does not tell."""
    agent_type: str | None = None
    """The agent whose process it is; None for other programs, and for agents that the reader may not know of."""
    session_id: str | None = None
    """The agent's session that it was started for, as far as its directory tells."""
    title: str | None = None


class Gpu(msgspec.Struct, frozen=True):
    """The state of one GPU; a member is None where the driver does not tell."""

    name: _Text
    use: _Part | None
    """Part of the last second or less in which it has computed."""
    total: _Bytes | None
    used: _Bytes | None
    """Bytes of its memory, and those in use."""
    temperature: Annotated[int, msgspec.Meta(ge=-273, le=1000)] | None
    """In °C."""
    holders: tuple[Holder, ...] = ()

    @property
    def is_free(self) -> bool:
        """True if nothing of weight runs on it."""
        is_used = self.total is not None and self.used is not None and self.used > FREE_BELOW * self.total
        return not is_used and (self.use is None or self.use < FREE_BELOW)


class Machine(msgspec.Struct, frozen=True):
    """The load of a machine."""

    cpus: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    """Number of its processors."""
    busy: Annotated[float, msgspec.Meta(ge=0, le=2**20)]
    """Processes that have run or waited for a processor, as the average of the last minute."""
    memory: Space | None = None
    disks: Annotated[tuple[Disk, ...], msgspec.Meta(max_length=MAX_DISKS)] = ()
    gpus: Annotated[tuple[Gpu, ...], msgspec.Meta(max_length=MAX_GPUS)] = ()
    problem: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    """The reason why the GPUs could not be read."""

    @property
    def free_cpus(self) -> int:
        """The number of processors that are idle, about."""
        return max(0, round(self.cpus - self.busy))


class DiskOf(NamedTuple):
    """The disk of a workspace, and its number, which several may share."""

    device: int
    disk: Disk


class UsedGpu(NamedTuple):
    """A GPU, and the processes that hold memory of it, with their bytes."""

    gpu: Gpu
    processes: dict[int, int | None]


def read_told(value: object, *, holders: bool = False) -> Machine | None:
    """Return what a gateway tells of its machine, without what holds its GPUs unless `holders`; None for any other
    value."""
    try:
        machine = msgspec.convert(value, Machine)
    except (msgspec.ValidationError, RecursionError):
        return None
    if holders:
        return machine
    gpus = tuple(msgspec.structs.replace(gpu, holders=()) for gpu in machine.gpus)
    return msgspec.structs.replace(machine, gpus=gpus)


def free_text(machine: Machine) -> str:
    """Say in a few words what of a machine is free."""
    parts = []
    if machine.gpus:
        parts.append(f"{sum(gpu.is_free for gpu in machine.gpus)} of {len(machine.gpus)} GPUs")
    parts.append(f"{machine.free_cpus} of {machine.cpus} CPUs")
    if machine.memory is not None and machine.memory.free is not None:
        parts.append(f"{size_text(machine.memory.free)} memory")
    return ", ".join(parts)


def size_text(size: int) -> str:
    """Return a number of bytes for a person."""
    for unit in ("MiB", "GiB"):
        size_in_unit = size / (2**20 if unit == "MiB" else 2**30)
        if size_in_unit < 1000:
            return f"{size_in_unit:.0f} {unit}" if size_in_unit >= 10 or unit == "MiB" else f"{size_in_unit:.1f} {unit}"
    return f"{size / 2**40:.1f} TiB"


# Reading


def read_processors(proc: Path = PROC) -> Machine:
    """Return the machine as far as its system tells at once: processors and memory."""
    try:
        load = max(0.0, round(os.getloadavg()[0], 2))
    except OSError:
        load = 0.0  # The system does not tell.
    return Machine(os.cpu_count() or 1, load, _memory(proc))


def _memory(proc: Path) -> Space | None:
    try:
        lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
        found = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        return Space(found["MemTotal"], found["MemAvailable"])
    except (OSError, ValueError, IndexError, KeyError):
        pass
    try:
        return Space(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), None)
    except (OSError, ValueError):
        return None


def read_disks(roots: Iterable[str]) -> list[DiskOf]:
    """Return the disks of workspaces; those that are not there now are left out."""
    found = []
    for root in roots:
        try:
            device, stat = os.stat(root).st_dev, os.statvfs(root)
        except OSError:
            continue
        found.append(DiskOf(device, Disk(root, stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)))
    return found


def once(disks: Iterable[DiskOf]) -> tuple[Disk, ...]:
    """Return each disk once, with the first of its workspaces."""
    found: dict[int, Disk] = {}
    for device, disk in disks:
        found.setdefault(device, disk)
    return tuple(found.values())[:MAX_DISKS]


def find_library(files: Iterable[Path] = DRIVER_FILES, name: str = "pynvml") -> ModuleType | None:
    """Return NVIDIA's library; None where no driver is. Raises `ImportError` where it is not installed."""
    return importlib.import_module(name) if any(path.exists() for path in files) else None


T = TypeVar("T")


def read_gpus(library: Any) -> list[UsedGpu]:
    """Return the GPUs that NVIDIA's library, the module, tells of. Raises its `NVMLError` if the driver does not."""
    library.nvmlInit()
    try:
        count = min(library.nvmlDeviceGetCount(), MAX_GPUS)
        return [_read_gpu(library, library.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    finally:
        library.nvmlShutdown()


def _read_gpu(library: Any, handle: Any) -> UsedGpu:
    def told(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except library.NVMLError:
            return None  # Not every GPU tells everything.

    name = told(lambda: library.nvmlDeviceGetName(handle))
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name or "GPU")
    use = told(lambda: library.nvmlDeviceGetUtilizationRates(handle).gpu)
    memory = told(lambda: library.nvmlDeviceGetMemoryInfo(handle))
    heat = told(lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU))
    running = [
        *(told(lambda: library.nvmlDeviceGetComputeRunningProcesses(handle)) or ()),
        *(told(lambda: library.nvmlDeviceGetGraphicsRunningProcesses(handle)) or ()),
    ]
    gpu = Gpu(
        text[:TEXT],
        None if use is None else min(max(use / 100, 0.0), 1.0),
        None if memory is None else memory.total,
        None if memory is None else memory.used,
        None if heat is None else heat,
    )
    return UsedGpu(gpu, {process.pid: process.usedGpuMemory for process in running[:MAX_PROCESSES]})
