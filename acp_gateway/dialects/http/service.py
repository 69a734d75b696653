"""Declares Streamable HTTP, which is a part of the endpoint."""

from typing import Final

from acp_gateway.config.services import ENDPOINT, Service

SERVICE: Final = Service(word=ENDPOINT, folder=__package__)
