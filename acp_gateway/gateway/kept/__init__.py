"""Prompts that wait without a request of a client: for a time, or for a person."""
