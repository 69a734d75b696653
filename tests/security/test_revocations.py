"""Revocation lists: what they say, and which are refused."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from acp_gateway.errors import ConfigError
from acp_gateway.security.revocations import Revocations, certificate_id, read_revocations
from tests.authority import ANN, BEGIN, END, Authority


@pytest.fixture
def authority() -> Authority:
    return Authority("the clients' authority")


@pytest.fixture
def client_ca(authority: Authority, tmp_path: Path) -> Path:
    return authority.write(tmp_path / "clients.pem")


def der_of(path: Path) -> bytes:
    return x509.load_pem_x509_certificates(path.read_bytes())[0].public_bytes(Encoding.DER)


def test_a_certificate_is_revoked_by_its_authority_and_number(
    authority: Authority, client_ca: Path, tmp_path: Path
) -> None:
    first, _ = authority.issue(tmp_path / "first", ANN)
    second, _ = authority.issue(tmp_path / "second", ANN)
    found = read_revocations(authority.revoke(tmp_path / "revoked.pem", first), client_ca)
    assert certificate_id(der_of(first)) in found.revoked
    assert certificate_id(der_of(second)) not in found.revoked
    assert not found.expired


def test_lists_of_several_authorities_may_stand_in_one_file(
    authority: Authority, client_ca: Path, tmp_path: Path
) -> None:
    other = Authority("another")
    mine, _ = authority.issue(tmp_path / "mine", ANN)
    theirs, _ = other.issue(tmp_path / "theirs", ANN)
    crl, more = authority.revoke(tmp_path / "a.pem", mine), other.revoke(tmp_path / "b.pem", theirs)
    crl.write_bytes(crl.read_bytes() + b"a remark\n" + more.read_bytes())
    client_ca.write_bytes(client_ca.read_bytes() + other.certificate.public_bytes(Encoding.PEM))
    assert read_revocations(crl, client_ca).revoked == {certificate_id(der_of(mine)), certificate_id(der_of(theirs))}


def test_a_list_that_has_expired_still_counts_and_is_warned_of(
    authority: Authority, client_ca: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ann, _ = authority.issue(tmp_path / "ann", ANN)
    crl = authority.revoke(tmp_path / "revoked.pem", ann, until=BEGIN)
    assert read_revocations(crl, client_ca).expired
    assert not read_revocations(authority.revoke(tmp_path / "b.pem", ann, until=END), client_ca).expired
    revocations = Revocations()
    revocations.load(crl, client_ca)
    assert certificate_id(der_of(ann)) in revocations
    assert "has expired; it still counts" in caplog.text


def test_what_is_not_a_list_of_the_authority_is_refused_and_the_former_counts(
    authority: Authority, client_ca: Path, tmp_path: Path
) -> None:
    ann, _ = authority.issue(tmp_path / "ann", ANN)
    crl = authority.revoke(tmp_path / "revoked.pem", ann)
    revocations = Revocations()
    revocations.load(crl, client_ca)
    namesake = Authority("the clients' authority").revoke(tmp_path / "x.pem", ann).read_bytes()
    stranger = Authority("a stranger").revoke(tmp_path / "y.pem", ann).read_bytes()
    for content, why in (
        (namesake, "that no authority in .* has signed"),
        (stranger, "that no authority in .* has signed"),
        (b"", "holds no certificate revocation list in PEM"),
        (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "cannot be read"),
    ):
        crl.write_bytes(content)
        with pytest.raises(ConfigError, match=why):
            revocations.load(crl, client_ca)
    crl.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        revocations.load(crl, client_ca)
    assert certificate_id(der_of(ann)) in revocations
