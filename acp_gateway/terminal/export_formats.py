"""The formats in which a session is written."""

from typing import Final

FORMATS: Final = {"markdown": "md", "html": "html", "json": "json"}
"""The formats, and the end of the name of a file of each."""
