"""Settings for all tests."""

from hypothesis import settings

# A slow machine is no failure, and a failure must come back when the test is run again.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
