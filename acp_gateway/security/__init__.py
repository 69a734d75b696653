"""Tokens, certificates, TLS contexts, pins."""
