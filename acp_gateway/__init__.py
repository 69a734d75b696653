"""Run coding agents on a remote machine, use them from the editor on a laptop (Agent Client Protocol)."""

__version__ = "0.1.0"
