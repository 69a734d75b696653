"""A library that answers as NVIDIA's, `pynvml`, for tests without a GPU."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """An error of the driver."""


@dataclass
class FakeGpu:
    """A GPU; a value that is None is not told."""

    name: str | bytes = "NVIDIA H100"
    use: int | None = 0
    """In percent."""
    total: int | None = 80 * 2**30
    used: int = 0
    temperature: int | None = 40
    processes: dict[int, int | None] = field(default_factory=dict)


class FakeNvml:
    """The functions of the library that are used here."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *gpus: FakeGpu, error: str | None = None) -> None:
        self.gpus = gpus
        self.error = error
        self.open = 0
        self.looks = 0

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name, and so are the others.
        if self.error is not None:
            raise NVMLError(self.error)
        self.open += 1
        self.looks += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str | bytes:  # noqa: N802
        return gpu.name

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=_told(gpu.use))

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> Any:  # noqa: N802
        return SimpleNamespace(total=_told(gpu.total), used=gpu.used)

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> Any:  # noqa: N802
        assert sensor == self.NVML_TEMPERATURE_GPU
        return _told(gpu.temperature)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in gpu.processes.items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: FakeGpu) -> list[Any]:  # noqa: N802
        raise NVMLError("Not Supported")


def _told(value: int | None) -> int:
    if value is None:
        raise NVMLError("Not Supported")
    return value
