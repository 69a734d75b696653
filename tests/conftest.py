"""Settings for all tests."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.doubles import SMALLEST_CONFIG

# A slow machine is no failure, and a failure must come back when the test is run again.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

# What tests write is not for others: files that others may change are refused.
os.umask(0o022)

# Under `nohup` this is ignored, by the programs that tests start as well.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The smallest configuration file, with its state beside it."""
    path = tmp_path / "config.toml"
    path.write_text(SMALLEST_CONFIG.format(directory=tmp_path))
    return path
