"""A gateway that serves in this process, and one with a certificate."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from acp_gateway.config.load import Config
from acp_gateway.security.certificates import create_certificate
from acp_gateway.server.serve import serve
from tests.kit.doubles import TIMEOUT, make_config


@asynccontextmanager
async def serving(config: Config, environment: dict[str, str] | None = None) -> AsyncIterator[list[str]]:
    """The URLs of a gateway that is stopped at the end of the block, if it has not ended by then."""
    if environment is None:
        environment = dict(os.environ)
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(partial(serve, config, environment))
            nursery.cancel_scope.cancel()


def secure(directory: Path, *urls: str) -> Config:
    """A configuration with a new certificate."""
    for name in ("cert.pem", "key.pem"):
        (directory / name).unlink(missing_ok=True)
    create_certificate(["127.0.0.1"], directory)
    config = make_config(directory, *urls)
    cert, key = directory / "cert.pem", directory / "key.pem"
    return replace(config, listen=tuple(replace(section, cert=cert, key=key) for section in config.listen))
