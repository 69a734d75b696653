"""Checks of ACP agents and clients: scripts of fixtures, judges over recorded dialogues, and a runner."""
