"""Fixtures for the tests of transports: a certificate, and the proof that no descriptor is left open."""

import gc
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.tls import client_context, server_context


@dataclass(frozen=True)
class Tls:
    """Both ends of a TLS connection to `localhost`."""

    server: ssl.SSLContext
    client: ssl.SSLContext


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    created = create_certificate(["localhost"], tmp_path_factory.mktemp("tls"))
    return Tls(server_context(created.cert_path, created.key_path), client_context(ca=created.cert_path, pin=None))


@pytest.fixture(autouse=True)
def _every_descriptor_is_closed(tls: Tls) -> Iterator[None]:
    before = set(os.listdir("/dev/fd"))
    yield
    after = set(os.listdir("/dev/fd"))
    if after - before:
        gc.collect()  # Some are closed by their last reference only, such as those of threads and of other libraries.
        after = set(os.listdir("/dev/fd"))
    assert after <= before
