"""The order for the launcher."""

import fcntl
import json
import os
import sys

import pytest

from acp_gateway.fence.start import Start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="fences are Linux's")

LONG = Start("/bin/agent", ["agent", "x" * 100_000], {})


def small_pipe() -> tuple[int, int]:
    """Return a pipe as a user gets it who has very many of them."""
    near, far = os.pipe2(os.O_CLOEXEC)
    fcntl.fcntl(far, fcntl.F_SETPIPE_SZ, 4096)
    return near, far


def test_an_order_is_read_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pipe", small_pipe)
    with LONG.order(7, {}) as file:
        order = json.load(file)
    assert (order["gateway"], order["command"]) == (7, LONG.command)


def test_an_order_that_does_not_fit_is_an_error_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pipe", small_pipe)
    real = fcntl.fcntl
    monkeypatch.setattr(
        fcntl, "fcntl", lambda far, what, size=0: 200_000 if what == fcntl.F_GETPIPE_SZ else real(far, what, size)
    )
    with pytest.raises(OSError, match="too many pipes"):
        LONG.order(7, {})
