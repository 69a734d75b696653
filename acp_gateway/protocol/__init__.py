"""The wire: JSON text by position, JSON-RPC, the method table, link messages, path maps, redaction."""
