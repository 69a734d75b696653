"""Pairing with a gateway, by ssh or by an invitation, and joining a shared session."""
