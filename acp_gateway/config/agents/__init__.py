"""Agents: their options, those that are known by name, the public registry, and the search for them on a machine."""
