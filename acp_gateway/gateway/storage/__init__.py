"""Sessions and their histories on disk."""
