"""A certificate that the program made."""

import pytest
from cryptography import x509

from acp_gateway.security.certificates import CreatedCertificate, create_certificate


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory) -> CreatedCertificate:
    hosts = ["box.example.org", "*.box.example.org", "192.0.2.7", "2001:db8::7"]
    return create_certificate(hosts, tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def certificate(created: CreatedCertificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(created.cert_path.read_bytes())
