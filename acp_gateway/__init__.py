"""Run coding agents on a remote machine, use them from the editor on a laptop (Agent Client Protocol)."""

__version__ = "0.1.0"

DISTRIBUTION = "acp-remote-gateway"
"""The name in package indexes, where `acp-gateway` is a program by another author."""

INSTALL = "pipx install ."
"""The command that installs the program from a checkout. No index has it yet."""

INSTALL_ALL = "pipx install --force '.[all]'"
"""The command that adds the extras to an installed program, likewise from a checkout.

One name for all of them, because an installation has only the extras of its last command.
"""
