"""Turns of a session, their prompts and updates, and the history that they leave. Pure."""
