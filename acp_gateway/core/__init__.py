"""Decisions for one agent and its clients: events go in, output comes out. No I/O, no clock, no log."""
