"""Declares the files of sessions over HTTP, which are a part of the page."""

from typing import Final

from acp_gateway.config.services import Service

SERVICE: Final = Service(word="page", folder=__package__, paths=frozenset({"files"}))
