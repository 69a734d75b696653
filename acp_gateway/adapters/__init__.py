"""Translators between other dialects and ACP: pure, without I/O and without a clock."""
