"""Certificates, pins, and handshakes between the two contexts, in memory."""

import datetime as dt
import hashlib
import re
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.errors import ConfigError, TrustError, UsageError
from acp_gateway.security import tls
from acp_gateway.security.certificates import CreatedCertificate, create_certificate
from tests.kit.authority import ANN, BEGIN, Authority, name

PRIVATE_KEYS: dict[str, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey] = {
    "ec": ec.generate_private_key(ec.SECP256R1()),
    "rsa": rsa.generate_private_key(public_exponent=65537, key_size=1024),  # noqa: S505 - fast; protects nothing
    "ed25519": ed25519.Ed25519PrivateKey.generate(),
}


def certificate_of(kind: str) -> x509.Certificate:
    """A certificate as others make them, with an issuer and a subject long enough for every form of DER's length."""
    key = PRIVATE_KEYS[kind]
    issuer = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "o" * 60)] * 6)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "s" * 60)] * 2))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(4711)
        .not_valid_before(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
        .not_valid_after(dt.datetime(2027, 1, 1, tzinfo=dt.UTC))
        .sign(key, None if kind == "ed25519" else hashes.SHA256())
    )


def pin_of(certificate: x509.Certificate) -> str:
    """The pin, by an independent way."""
    der = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return "sha256:" + hashlib.sha256(der).hexdigest()


def der_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


DER = der_of(certificate_of("ec"))


def handshake(
    client: ssl.SSLContext,
    server: ssl.SSLContext,
    host: str | None = "box.example.org",
    *,
    session: ssl.SSLSession | None = None,
    to_client: ssl.MemoryBIO | None = None,
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Shake hands in memory; both ends. Raises what either end raises; `to_client` holds what was left unread then."""
    to_client, to_server = to_client or ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host, session=session),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    unfinished = list(ends)
    for _ in range(10):
        for end in list(unfinished):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            unfinished.remove(end)
        if not unfinished:
            return ends
    raise AssertionError("the handshake did not finish")


def server_of(created: CreatedCertificate) -> ssl.SSLContext:
    return tls.server_context(created.cert_path, created.key_path)


# Pins


def test_the_pin_that_is_told_is_the_one_of_the_public_key(
    created: CreatedCertificate, certificate: x509.Certificate
) -> None:
    assert created.pin == pin_of(certificate)


@pytest.mark.parametrize("kind", PRIVATE_KEYS)
def test_the_pin_is_found_in_certificates_of_every_kind(kind: str) -> None:
    certificate = certificate_of(kind)
    assert tls.spki_pin(der_of(certificate)) == pin_of(certificate)


def test_the_pin_is_found_in_a_certificate_of_version_1() -> None:
    content = certificate_of("ec").tbs_certificate_bytes[4:]
    assert content[:5] == bytes.fromhex("a003020102")
    version_1 = b"\x30\x82" + (len(content) - 5).to_bytes(2) + content[5:]
    assert tls.spki_pin(b"\x30\x82" + len(version_1).to_bytes(2) + version_1) == tls.spki_pin(DER)


@given(st.binary())
def test_garbage_is_not_a_certificate(garbage: bytes) -> None:
    with pytest.raises(TrustError):
        tls.spki_pin(garbage)


@given(st.integers(0, len(DER) - 1))
def test_a_certificate_that_was_cut_is_refused(length: int) -> None:
    with pytest.raises(TrustError):
        tls.spki_pin(DER[:length])


@given(st.integers(0, len(DER) - 1), st.integers(0, 255))
def test_a_certificate_with_one_byte_changed_gives_a_pin_or_a_trust_error(place: int, byte: int) -> None:
    try:
        pin = tls.spki_pin(DER[:place] + bytes([byte]) + DER[place + 1 :])
    except TrustError:
        return
    assert tls.parse_pin(pin) == pin


def test_a_certificate_with_something_after_it_is_refused() -> None:
    with pytest.raises(TrustError, match=r"not an X\.509 certificate"):
        tls.spki_pin(DER + b"\0")


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"\x30\x80", id="indefinite"),
        pytest.param(b"\x30\x83\0" + (len(DER) - 4).to_bytes(2), id="a leading zero"),
        pytest.param(b"\x30\x85\0\0\0" + (len(DER) - 4).to_bytes(2), id="five bytes"),
        pytest.param(b"\x30\x82" + (len(DER) - 3).to_bytes(2), id="more than there is"),
        pytest.param(b"\x31\x82" + (len(DER) - 4).to_bytes(2), id="another type"),
    ],
)
def test_a_certificate_that_is_not_spelled_in_der_is_refused(header: bytes) -> None:
    assert tls.spki_pin(b"\x30\x82" + (len(DER) - 4).to_bytes(2) + DER[4:])
    with pytest.raises(TrustError):
        tls.spki_pin(header + DER[4:])


def test_a_short_length_in_the_long_form_is_not_der() -> None:
    with pytest.raises(TrustError):
        tls._element(b"\x30\x81\x05hello", 0, 8, 0x30)


def test_a_pin_is_read_in_any_case_and_between_blanks() -> None:
    assert tls.parse_pin(" SHA256:" + "AB" * 32 + "\n") == "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    "text", ["", "ab" * 32, "sha1:" + "ab" * 20, "sha256:" + "ab" * 31, "sha256:" + "xy" * 32, "acpgw_secret"]
)
def test_what_is_not_a_pin_is_answered_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"sha256:[0-9a-f]{64}, for example") as caught:
        tls.parse_pin(text)
    assert "acpgw_secret" not in str(caught.value)


def test_the_right_pin_passes() -> None:
    tls.check_pin(DER, tls.spki_pin(DER))


def test_a_wrong_pin_shows_both_and_what_to_compare() -> None:
    expected = "sha256:" + "ab" * 32
    with pytest.raises(TrustError, match="`acp-gateway certs show` prints") as caught:
        tls.check_pin(DER, expected)
    assert expected in str(caught.value)
    assert tls.spki_pin(DER) in str(caught.value)


def test_no_certificate_at_all_does_not_pass() -> None:
    with pytest.raises(TrustError, match="no certificate"):
        tls.check_pin(None, tls.spki_pin(DER))


# Handshakes


@pytest.mark.parametrize("host", ["box.example.org", "a.box.example.org", "192.0.2.7", "2001:db8::7"])
def test_a_client_with_the_certificate_as_its_authority_gets_through(created: CreatedCertificate, host: str) -> None:
    client, _ = handshake(tls.client_context(ca=created.cert_path, pin=None), server_of(created), host)
    assert client.version() == "TLSv1.3"


def test_the_certificate_passes_the_strict_checks_of_newer_pythons(created: CreatedCertificate) -> None:
    context = tls.client_context(ca=created.cert_path, pin=None)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    handshake(context, server_of(created))


def test_both_ends_agree_on_http_1_1(created: CreatedCertificate) -> None:
    client, server = handshake(tls.client_context(ca=None, pin=created.pin), server_of(created))
    assert (client.selected_alpn_protocol(), server.selected_alpn_protocol()) == ("http/1.1", "http/1.1")


@pytest.mark.parametrize(
    ("spoken", "agreed"), [(["http/1.1", "h2"], "h2"), (["http/1.1"], "http/1.1"), (["h3"], None), ([], None)]
)
def test_a_client_that_speaks_http_2_has_it_where_it_is_offered(
    created: CreatedCertificate, spoken: list[str], agreed: str | None
) -> None:
    context = tls.client_context(ca=None, pin=created.pin)
    context.set_alpn_protocols(spoken)
    _, server = handshake(context, tls.server_context(created.cert_path, created.key_path, http2=True))
    assert server.selected_alpn_protocol() == agreed


def test_another_authority_is_not_trusted(created: CreatedCertificate, tmp_path: Path) -> None:
    other = create_certificate(["box.example.org"], tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls.client_context(ca=other.cert_path, pin=None), server_of(created))


def test_the_systems_authorities_do_not_know_a_certificate_of_ones_own(created: CreatedCertificate) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls.client_context(ca=None, pin=None), server_of(created))


def test_a_host_name_that_is_not_in_the_certificate_is_not_trusted(created: CreatedCertificate) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(tls.client_context(ca=created.cert_path, pin=None), server_of(created), "other.example.org")


@pytest.mark.parametrize("host", ["other.example.org", None])
def test_with_a_pin_neither_authority_nor_host_name_matter(created: CreatedCertificate, host: str | None) -> None:
    client, _ = handshake(tls.client_context(ca=None, pin=created.pin), server_of(created), host)
    tls.check_pin(client.getpeercert(binary_form=True), created.pin)


def test_another_key_does_not_pass_the_pin(created: CreatedCertificate, tmp_path: Path) -> None:
    impostor = create_certificate(["box.example.org"], tmp_path)
    client, _ = handshake(tls.client_context(ca=None, pin=created.pin), server_of(impostor))
    with pytest.raises(TrustError):
        tls.check_pin(client.getpeercert(binary_form=True), created.pin)


@pytest.mark.filterwarnings("ignore:.*TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_tls_older_than_1_2_is_refused_by_either_end(created: CreatedCertificate) -> None:
    old_client, old_server = tls.client_context(ca=None, pin=created.pin), server_of(created)
    for old in (old_client, old_server):
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    handshake(old_client, old_server)
    assert answer_to(old_client, server_of(created)) == [ALERT]
    with pytest.raises(ssl.SSLError):
        handshake(tls.client_context(ca=None, pin=created.pin), old_server)


ALERT = 21
"""The type of the record that says why there will be no connection (RFC 8446, 5.1)."""


def answer_to(client: ssl.SSLContext, server: ssl.SSLContext) -> list[int]:
    """The types of the records that a client gets that the server refuses."""
    to_client = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLError):
        handshake(client, server, to_client=to_client)
    answer, types = to_client.read(), []
    while answer:
        types.append(answer[0])
        answer = answer[5 + int.from_bytes(answer[3:5]) :]
    return types


def only(cipher: str) -> ssl.SSLContext:
    """A client that can nothing but this, and does not care whom it talks to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(f"{cipher}:@SECLEVEL=0")
    return context


@pytest.mark.parametrize(
    "cipher",
    [
        pytest.param("ECDHE-ECDSA-AES128-SHA256", id="CBC"),
        pytest.param("ECDHE-ECDSA-AES256-SHA", id="CBC with SHA-1"),
        pytest.param("ECDHE-ECDSA-AES256-CCM8", id="half a checksum"),
        pytest.param("ECDHE-ECDSA-NULL-SHA", id="no encryption"),
        pytest.param("AECDH-AES256-SHA", id="no certificate"),
    ],
)
def test_a_client_that_knows_only_weak_ciphers_gets_an_alert_and_nothing_else(
    created: CreatedCertificate, cipher: str
) -> None:
    lenient = server_of(created)
    lenient.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    assert handshake(only(cipher), lenient)[0].cipher() is not None
    assert answer_to(only(cipher), server_of(created)) == [ALERT]


@pytest.mark.parametrize("cipher", ["AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305"])
def test_tls_1_2_has_the_ciphers_that_are_left_of_it(created: CreatedCertificate, cipher: str) -> None:
    client, _ = handshake(only(f"ECDHE-ECDSA-{cipher}"), server_of(created))
    assert client.version() == "TLSv1.2"


def test_all_ciphers_of_the_server_make_keys_of_the_moment_and_check_what_they_decrypt(
    created: CreatedCertificate,
) -> None:
    old = [cipher for cipher in server_of(created).get_ciphers() if cipher["protocol"] != "TLSv1.3"]
    assert old
    for cipher in old:
        assert cipher["kea"] == "kx-ecdhe", cipher["name"]
        assert cipher["aead"], cipher["name"]


def test_the_server_neither_compresses_nor_starts_over_in_the_middle(created: CreatedCertificate) -> None:
    context = server_of(created)
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.options & ssl.OP_NO_RENEGOTIATION


# Client certificates


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("the clients' authority")


@pytest.fixture
def asking(created: CreatedCertificate, authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    """A server that lets clients of `authority` in."""
    return tls.server_context(created.cert_path, created.key_path, authority.write(tmp_path / "clients.pem"))


def client_with(created: CreatedCertificate, cert: Path, key: Path) -> ssl.SSLContext:
    return tls.client_context(ca=created.cert_path, pin=None, cert=cert, key=key)


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_with_a_certificate_of_the_authority_shows_it(
    created: CreatedCertificate, authority: Authority, asking: ssl.SSLContext, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    context = client_with(created, *authority.issue(tmp_path, ANN))
    context.maximum_version = version
    _, server = handshake(context, asking)
    der = server.getpeercert(binary_form=True)
    assert der is not None
    assert tls.certificate_subject(der) == "CN=ann,O=Example"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_certificate_is_shown_to_a_pinned_server_as_well(
    created: CreatedCertificate, authority: Authority, asking: ssl.SSLContext, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    cert, key = authority.issue(tmp_path, ANN)
    context = tls.client_context(ca=None, pin=created.pin, cert=cert, key=key)
    context.maximum_version = version
    client, server = handshake(context, asking, None)
    tls.check_pin(client.getpeercert(binary_form=True), created.pin)
    assert server.getpeercert(binary_form=True) is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_without_a_certificate_is_let_through_to_show_a_token(
    created: CreatedCertificate, asking: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    context = tls.client_context(ca=created.cert_path, pin=None)
    context.maximum_version = version
    _, server = handshake(context, asking)
    assert server.getpeercert(binary_form=True) is None


def test_a_server_without_client_ca_does_not_ask_for_a_certificate(
    created: CreatedCertificate, authority: Authority, tmp_path: Path
) -> None:
    _, server = handshake(client_with(created, *authority.issue(tmp_path, ANN)), server_of(created))
    assert server.getpeercert(binary_form=True) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_certificate_of_another_authority_of_the_same_name_ends_the_handshake(
    created: CreatedCertificate,
    authority: Authority,
    asking: ssl.SSLContext,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: ssl.TLSVersion,
) -> None:
    other = Authority("the clients' authority")
    # Nor does it help that the system knows that one.
    monkeypatch.setenv("SSL_CERT_FILE", str(other.write(tmp_path / "system.pem")))
    context = client_with(created, *other.issue(tmp_path, ANN, chain=[other]))
    context.maximum_version = version
    with pytest.raises(ssl.SSLError):
        handshake(context, asking)


def test_a_certificate_that_signed_itself_ends_the_handshake(
    created: CreatedCertificate, asking: ssl.SSLContext
) -> None:
    with pytest.raises(ssl.SSLError):
        handshake(client_with(created, created.cert_path, created.key_path), asking)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"end": BEGIN + dt.timedelta(days=1)}, id="expired"),
        pytest.param({"usage": ExtendedKeyUsageOID.SERVER_AUTH}, id="for servers"),
    ],
)
def test_a_certificate_that_is_not_for_this_or_not_for_now_ends_the_handshake(
    created: CreatedCertificate, authority: Authority, asking: ssl.SSLContext, tmp_path: Path, changes: dict[str, Any]
) -> None:
    context = client_with(created, *authority.issue(tmp_path, ANN, **changes))
    with pytest.raises(ssl.SSLError):
        handshake(context, asking)


def test_of_an_authority_below_another_only_its_own_clients_are_let_in(
    created: CreatedCertificate, authority: Authority, tmp_path: Path
) -> None:
    team, neighbours = Authority("team", authority), Authority("neighbours", authority)
    asking = tls.server_context(created.cert_path, created.key_path, team.write(tmp_path / "clients.pem"))
    handshake(client_with(created, *team.issue(tmp_path / "team", ANN)), asking)
    for folder, issuer, chain in [("others", neighbours, [neighbours, authority]), ("top", authority, [authority])]:
        context = client_with(created, *issuer.issue(tmp_path / folder, ANN, chain=chain))
        with pytest.raises(ssl.SSLError):
            handshake(context, asking)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_that_is_taken_up_again_is_still_that_of_the_certificate(
    created: CreatedCertificate, authority: Authority, asking: ssl.SSLContext, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    context = client_with(created, *authority.issue(tmp_path, ANN))
    context.maximum_version = version
    client, server = handshake(context, asking)
    # With TLS 1.3 the ticket comes before the first data.
    server.write(b"x")
    assert client.read(1) == b"x"
    again, server = handshake(context, asking, session=client.session)
    assert again.session_reused
    der = server.getpeercert(binary_form=True)
    assert der is not None
    assert tls.certificate_subject(der) == "CN=ann,O=Example"


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (ANN, "CN=ann,O=Example"),
        (name((NameOID.COMMON_NAME, "ann")), "CN=ann"),
        (name((NameOID.COMMON_NAME, "Änne")), "CN=Änne"),
        (
            name((NameOID.DOMAIN_COMPONENT, "example"), (NameOID.USER_ID, "ann"), (NameOID.COMMON_NAME, "a b")),
            "CN=a b,UID=ann,DC=example",
        ),
        (name((NameOID.EMAIL_ADDRESS, "ann@example.org")), "1.2.840.113549.1.9.1=ann@example.org"),
        # What would be two parts if it were not escaped.
        (name((NameOID.COMMON_NAME, "ann,O=Example")), r"CN=ann\,O=Example"),
        (name((NameOID.COMMON_NAME, "ann+OU=x")), r"CN=ann\+OU=x"),
        (name((NameOID.COMMON_NAME, " #a\\")), r"CN=\ #a\\"),
        (name(), ""),
    ],
)
def test_a_subject_is_written_whole_and_the_most_specific_part_first(
    authority: Authority, tmp_path: Path, subject: x509.Name, text: str
) -> None:
    cert, _ = authority.issue(tmp_path, subject)
    assert tls.certificate_subject(der_of(x509.load_pem_x509_certificate(cert.read_bytes()))) == text


def test_two_values_in_one_part_are_not_two_parts(authority: Authority, tmp_path: Path) -> None:
    pair = [x509.NameAttribute(NameOID.COMMON_NAME, "ann"), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example")]
    cert, _ = authority.issue(tmp_path, x509.Name([x509.RelativeDistinguishedName(pair)]))
    assert tls.certificate_subject(der_of(x509.load_pem_x509_certificate(cert.read_bytes()))) == "CN=ann+O=Example"


def test_the_end_of_a_certificate_is_in_seconds_since_1970() -> None:
    assert tls.certificate_end(DER) == dt.datetime(2027, 1, 1, tzinfo=dt.UTC).timestamp()


@given(st.one_of(st.binary(), st.integers(0, len(DER) - 1).map(lambda length: DER[:length])))
def test_of_what_is_not_a_certificate_there_is_neither_subject_nor_end(garbage: bytes) -> None:
    for read in (tls.certificate_subject, tls.certificate_end):
        with pytest.raises(TrustError):
            read(garbage)


def test_a_subject_that_is_not_text_is_left_out(authority: Authority, tmp_path: Path) -> None:
    cert, _ = authority.issue(tmp_path, ANN)
    der = der_of(x509.load_pem_x509_certificate(cert.read_bytes()))
    text, bits = b"\x0c\x03ann", b"\x03\x03ann"
    assert der.count(text) == 1
    with pytest.raises(TrustError):
        tls.certificate_subject(der.replace(text, bits))


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@given(st.integers(0, len(DER) - 1), st.integers(0, 255))
def test_a_certificate_with_one_byte_changed_has_a_subject_or_end_or_is_refused(place: int, byte: int) -> None:
    for read in (tls.certificate_subject, tls.certificate_end):
        try:
            assert isinstance(read(DER[:place] + bytes([byte]) + DER[place + 1 :]), str | float)
        except TrustError:
            pass


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_the_commands_in_the_documentation_make_a_certificate_that_is_let_in(
    created: CreatedCertificate, tmp_path: Path
) -> None:
    text = (Path(__file__).parents[2] / "certs" / "README.md").read_text()
    section = text.partition("\n## Certificates of clients\n")[2]
    commands = re.findall(r"^    ((?:openssl|printf) .*)$", section, re.MULTILINE)
    assert len(commands) == 4
    (subject,) = re.findall(r'^    subject = "(.*)"$', section, re.MULTILINE)
    for command in commands:
        subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, capture_output=True)
    asking = tls.server_context(created.cert_path, created.key_path, tmp_path / "clients-ca.pem")
    _, server = handshake(client_with(created, tmp_path / "laptop.pem", tmp_path / "laptop.key"), asking)
    der = server.getpeercert(binary_form=True)
    assert der is not None
    assert tls.certificate_subject(der) == subject


# Files


class Files:
    """The files of one end by their names, and how a context is made of them."""

    def __init__(self, folder: Path, authority: Authority, end: str) -> None:
        other = create_certificate(["box"], folder / "other")
        (folder / "text").write_text("hello")
        self.places = {"other": other.key_path, "text": folder / "text", "nowhere": folder / "nowhere.pem"}
        self.end = end
        if end == "server":
            cert, key, _ = create_certificate(["localhost"], folder / "server")
            self.files: dict[str, Path] = {"cert": cert, "key": key}
        else:
            self.files = dict(zip(("cert", "key"), authority.issue(folder / "ann", ANN), strict=True))

    def context(self) -> ssl.SSLContext:
        if self.end == "server":
            return tls.server_context(**self.files)  # type: ignore[arg-type]
        return tls.client_context(**{"ca": None, "pin": None, **self.files})  # type: ignore[arg-type]


NOT_PEM = r"not a certificate and a key in PEM .*"
NO_FILE = "cannot be read: No such file"


@pytest.mark.parametrize(
    ("end", "wrong", "place", "flaw"),
    [
        ("server", "cert", "nowhere", NO_FILE),
        ("server", "key", "nowhere", NO_FILE),
        ("server", "client_ca", "nowhere", NO_FILE),
        ("server", "key", "other", "is not the key of the certificate in"),
        ("server", "cert", "text", f"{NOT_PEM}`acp-gateway certs create`"),
        ("server", "key", "text", f"{NOT_PEM}`acp-gateway certs create`"),
        ("server", "client_ca", "text", r"holds no certificate in PEM; .* authority of your clients"),
        ("client", "cert", "nowhere", NO_FILE),
        ("client", "key", "nowhere", NO_FILE),
        ("client", "ca", "nowhere", NO_FILE),
        ("client", "key", "other", "is not the key of the certificate in"),
        ("client", "cert", "text", f"{NOT_PEM}; both come from"),
        ("client", "ca", "text", "holds no certificate in PEM"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_that_names_it(
    end: str, wrong: str, place: str, flaw: str, authority: Authority, tmp_path: Path
) -> None:
    files = Files(tmp_path, authority, end)
    files.files[wrong] = files.places[place]
    with pytest.raises(ConfigError, match=flaw) as caught:
        files.context()
    # OpenSSL does not tell which of a certificate and its key is the wrong one.
    assert caught.value.file == str(files.files["cert" if flaw.startswith("not a") else wrong])


def test_certificate_and_key_that_are_swapped_are_told(created: CreatedCertificate) -> None:
    with pytest.raises(
        ConfigError, match=r"cert and key look swapped: key\.pem holds a private key, and cert\.pem none"
    ):
        tls.server_context(created.key_path, created.cert_path)


def test_a_key_with_a_passphrase_is_refused_instead_of_asked_for(created: CreatedCertificate, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(created.key_path.read_bytes(), None)
    protected = tmp_path / "protected.pem"
    protected.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match="is protected by a passphrase") as caught:
        tls.server_context(created.cert_path, protected)
    assert caught.value.file == str(protected)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610])
def test_a_clients_key_that_others_may_use_is_refused(authority: Authority, tmp_path: Path, mode: int) -> None:
    cert, key = authority.issue(tmp_path, ANN)
    key.chmod(mode)
    with pytest.raises(ConfigError, match=f"others may use it .mode {mode:04o}.: chmod 600 ") as caught:
        tls.client_context(ca=None, pin=None, cert=cert, key=key)
    assert caught.value.file == str(key)
