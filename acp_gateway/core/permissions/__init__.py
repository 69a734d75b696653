"""Decisions on permissions without a person."""
