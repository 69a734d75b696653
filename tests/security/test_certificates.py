"""Certificates that are created, read and renewed."""

import datetime as dt
import ipaddress
import os
import resource
import socket
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from acp_gateway.errors import ConfigError, UsageError
from acp_gateway.security.certificates import (
    CreatedCertificate,
    Revocations,
    certificate_id,
    create_certificate,
    default_hosts,
    read_certificate,
    read_revocations,
    renew_certificate,
)
from acp_gateway.security.tls import check_pin, client_context, server_context
from tests.kit.authority import ANN, BEGIN, END, Authority, name

KEYS: dict[str, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey] = {
    "ec": ec.generate_private_key(ec.SECP256R1()),
    "rsa": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ed25519": ed25519.Ed25519PrivateKey.generate(),
}

PUBLIC = (
    KEYS["ec"].public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
)


def private_pem(kind: str, passphrase: bytes | None = None) -> bytes:
    protection: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        protection = serialization.BestAvailableEncryption(passphrase)
    return KEYS[kind].private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)


def made_by_hand(directory: Path, kind: str = "ec", subject: x509.Name = ANN, *names: x509.GeneralName) -> Path:
    """`directory` with an expired certificate that signed itself, as openssl makes them."""
    key = KEYS[kind]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(BEGIN)
        .not_valid_after(BEGIN + dt.timedelta(days=1))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(key, None if kind == "ed25519" else hashes.SHA256())
    (directory / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (directory / "key.pem").write_bytes(private_pem(kind))
    return directory


def error_of(directory: Path, *hosts: str) -> str:
    """Return why a certificate is not renewed, and check that it is unchanged."""
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(ConfigError) as caught:
        renew_certificate(directory, hosts)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    return str(caught.value).removeprefix(f"{directory}/")


# Reading


def test_a_certificate_of_ones_own_says_its_pin_its_names_and_its_dates(tmp_path: Path) -> None:
    created = create_certificate(["box.example.org", "192.0.2.7", "2001:db8::7"], tmp_path)
    shown = read_certificate(created.cert_path)
    assert (shown.pin, shown.subject, shown.issuer) == (created.pin, "CN=acp-gateway", None)
    assert shown.names == ("box.example.org", "192.0.2.7", "2001:db8::7")
    assert shown.begin < dt.datetime.now(dt.UTC) < shown.end


def test_a_certificate_of_an_authority_says_whose_it_is_and_who_signed_it(tmp_path: Path) -> None:
    authority = Authority("an authority")
    cert, _ = authority.issue(tmp_path, ANN, chain=[authority])
    shown = read_certificate(cert)
    assert (shown.subject, shown.issuer, shown.names) == ("CN=ann,O=Example", "CN=an authority", ())
    assert (shown.begin, shown.end) == (BEGIN, END)


def test_who_calls_itself_its_own_issuer_has_not_signed_itself_by_that(tmp_path: Path) -> None:
    cert, _ = Authority("the same").issue(tmp_path, name((NameOID.COMMON_NAME, "the same")))
    assert read_certificate(cert).issuer == "CN=the same"


def test_what_would_move_the_cursor_of_a_terminal_is_replaced(tmp_path: Path) -> None:
    cert, _ = Authority("\x1b[2J").issue(tmp_path, name((NameOID.COMMON_NAME, "ann\n\u202e机器")))
    shown = read_certificate(cert)
    assert (shown.subject, shown.issuer) == ("CN=ann \\u202e机器", "CN=\\x1b[2J")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file; `acp-gateway certs create` makes one") as caught:
        read_certificate(tmp_path / "cert.pem")
    assert caught.value.file == str(tmp_path / "cert.pem")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"hello",
        private_pem("ec"),
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n",
        bytes(100),
    ],
)
def test_a_file_without_a_certificate_is_told(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "cert.pem").write_bytes(text)
    with pytest.raises(ConfigError, match="holds no certificate in PEM that can be read"):
        read_certificate(tmp_path / "cert.pem")


def test_a_certificate_whose_names_cannot_be_read_is_told(tmp_path: Path) -> None:
    cert, _ = Authority("x").issue(tmp_path, ANN)
    der = ssl.PEM_cert_to_DER_cert(cert.read_text()).replace(b"\x0c\x03ann", b"\x03\x03ann")
    cert.write_text(ssl.DER_cert_to_PEM_cert(der))
    with pytest.raises(ConfigError, match="holds no certificate in PEM that can be read"):
        read_certificate(cert)


def test_a_folder_is_not_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_certificate(tmp_path)


# Renewing


def test_a_renewed_certificate_has_the_same_key_names_and_subject_and_a_new_life(tmp_path: Path) -> None:
    names = [x509.DNSName("box"), x509.IPAddress(ipaddress.ip_address("::1")), x509.RFC822Name("a@b")]
    made_by_hand(tmp_path, "ec", ANN, *names)
    old = read_certificate(tmp_path / "cert.pem")
    renewed = renew_certificate(tmp_path)
    assert renewed == read_certificate(tmp_path / "cert.pem")
    assert (renewed.pin, renewed.names, renewed.subject) == (old.pin, ("box", "::1", "a@b"), old.subject)
    assert old.end < renewed.begin < dt.datetime.now(dt.UTC) < renewed.end


@pytest.mark.parametrize("kind", KEYS)
def test_clients_with_the_pin_or_with_the_new_file_trust_a_renewed_certificate_of_any_kind(
    tmp_path: Path, kind: str
) -> None:
    made_by_hand(tmp_path, kind, ANN, x509.DNSName("box"))
    pin = read_certificate(tmp_path / "cert.pem").pin
    renew_certificate(tmp_path)
    server = server_context(tmp_path / "cert.pem", tmp_path / "key.pem")
    for context in (client_context(ca=None, pin=pin), client_context(ca=tmp_path / "cert.pem", pin=None)):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        near = context.wrap_bio(to_client, to_server, server_hostname="box")
        far = server.wrap_bio(to_server, to_client, server_side=True)
        for end in (near, far, near, far):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
        check_pin(near.getpeercert(binary_form=True), pin)


def test_a_certificate_can_be_renewed_again_and_again(tmp_path: Path) -> None:
    created = create_certificate(["box"], tmp_path)
    renewals = [renew_certificate(tmp_path) for _ in range(3)]
    assert {(renewed.pin, renewed.names, renewed.issuer) for renewed in renewals} == {(created.pin, ("box",), None)}


def test_other_names_take_the_place_of_the_old_ones(tmp_path: Path) -> None:
    created = create_certificate(["box"], tmp_path)
    renewed = renew_certificate(tmp_path, ["new.example", "192.0.2.7"])
    assert (renewed.names, renewed.pin) == (("new.example", "192.0.2.7"), created.pin)


def test_a_host_that_cannot_be_in_a_certificate_leaves_the_old_one(tmp_path: Path) -> None:
    before = create_certificate(["box"], tmp_path).cert_path.read_bytes()
    with pytest.raises(UsageError, match="is neither a host name"):
        renew_certificate(tmp_path, ["a b"])
    assert (tmp_path / "cert.pem").read_bytes() == before


def test_the_file_keeps_its_mode_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    create_certificate(["box"], tmp_path)
    (tmp_path / "cert.pem").chmod(0o640)
    (tmp_path / "cert.pem.new").write_text("left by one that was killed")
    renew_certificate(tmp_path)
    assert stat.S_IMODE((tmp_path / "cert.pem").stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cert.pem", "key.pem"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_renews_belongs_to_whom_it_belonged(tmp_path: Path) -> None:
    create_certificate(["box"], tmp_path)
    os.chown(tmp_path / "cert.pem", 12345, 23456)
    renew_certificate(tmp_path)
    after = (tmp_path / "cert.pem").stat()
    assert (after.st_uid, after.st_gid) == (12345, 23456)


def test_where_the_certificate_is_a_link_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "links").mkdir()
    pin = create_certificate(["box"], tmp_path / "real").pin
    for file in ("cert.pem", "key.pem"):
        (tmp_path / "links" / file).symlink_to(tmp_path / "real" / file)
    renewed = renew_certificate(tmp_path / "links")
    assert (tmp_path / "links" / "cert.pem").is_symlink()
    assert read_certificate(tmp_path / "real" / "cert.pem") == renewed
    assert renewed.pin == pin


def test_a_certificate_that_cannot_be_replaced_is_told_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = create_certificate(["box"], tmp_path).cert_path.read_bytes()

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="cannot be replaced: No space left on device") as caught:
        renew_certificate(tmp_path)
    assert caught.value.file == str(tmp_path / "cert.pem")
    assert (tmp_path / "cert.pem").read_bytes() == before


@pytest.mark.parametrize(("room", "file"), [(0, "key.pem"), (300, "cert.pem")])
def test_on_a_full_disk_nothing_is_left_that_would_be_in_the_way_of_the_next_attempt(
    room: int, file: str, tmp_path: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(ConfigError, match="cannot be written: File too large") as caught:
            create_certificate(["box"], tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.file == str(tmp_path / file)
    assert list(tmp_path.iterdir()) == []
    create_certificate(["box"], tmp_path)


def test_the_certificate_of_an_authority_is_renewed_there(tmp_path: Path) -> None:
    authority = Authority("an authority")
    for chain in ([], [authority]):
        cert, key = authority.issue(tmp_path / f"{len(chain)}", ANN, chain=chain)
        cert.rename(cert.with_name("cert.pem"))
        key.rename(key.with_name("key.pem"))
        assert error_of(cert.parent).startswith("cert.pem: was signed by an authority, not by its own key")


def test_a_key_that_is_another_ones_is_told(tmp_path: Path) -> None:
    made_by_hand(tmp_path, "ec", ANN, x509.DNSName("box"))
    for kind in ("rsa", "ed25519"):
        (tmp_path / "key.pem").write_bytes(private_pem(kind))
        assert error_of(tmp_path).startswith("key.pem: is not the key of the certificate in")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"hello", "key.pem: holds no private key in PEM"),
        (PUBLIC, "key.pem: holds no private key in PEM"),
        (private_pem("ec", b"secret"), "key.pem: is protected by a passphrase: openssl pkey -in "),
    ],
    ids=["no PEM", "a public key", "a passphrase"],
)
def test_a_key_that_cannot_be_used_is_told(tmp_path: Path, text: bytes, error: str) -> None:
    made_by_hand(tmp_path, "ec", ANN, x509.DNSName("box"))
    (tmp_path / "key.pem").write_bytes(text)
    assert error_of(tmp_path).startswith(error)


def test_without_a_certificate_or_without_a_key_there_is_nothing_to_renew(tmp_path: Path) -> None:
    assert error_of(tmp_path).startswith("cert.pem: there is no such file")
    made_by_hand(tmp_path, "ec", ANN, x509.DNSName("box"))
    (tmp_path / "key.pem").unlink()
    assert error_of(tmp_path).startswith("key.pem: there is no such file")


def test_a_certificate_without_names_is_renewed_for_those_that_are_given(tmp_path: Path) -> None:
    made_by_hand(tmp_path)
    assert error_of(tmp_path) == "cert.pem: names no host that a new one could be for: give --host"
    assert renew_certificate(tmp_path, ["box"]).names == ("box",)


# Creating


def test_a_certificate_is_for_the_hosts_that_were_named(certificate: x509.Certificate) -> None:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["box.example.org", "*.box.example.org"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("192.0.2.7"),
        ipaddress.ip_address("2001:db8::7"),
    ]


def test_without_hosts_a_certificate_is_for_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr(socket, "getfqdn", lambda: "box.example.org")
    loaded = x509.load_pem_x509_certificate(create_certificate([], tmp_path).cert_path.read_bytes())
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["box", "box.example.org", "localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]


def test_a_machines_name_that_is_not_a_host_name_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Ännchens Box")
    monkeypatch.setattr(socket, "getfqdn", lambda: "localhost")
    assert default_hosts() == ["localhost", "127.0.0.1", "::1"]


@pytest.mark.parametrize("host", ["", "box:7443", "[::1]", "Ännchen", "a b", "https://box", "-", "a" * 260])
def test_a_host_that_cannot_be_in_a_certificate_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError, match="is neither a host name"):
        create_certificate(["box", host], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_certificate_outlasts_the_machine_that_it_is_made_for(certificate: x509.Certificate) -> None:
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc > dt.timedelta(days=3650)
    assert certificate.not_valid_before_utc < dt.datetime.now(dt.UTC) - dt.timedelta(hours=23)


def test_a_created_key_is_readable_by_its_owner_alone(created: CreatedCertificate) -> None:
    assert stat.S_IMODE(created.key_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(created.cert_path.stat().st_mode) & 0o400


def test_the_files_are_called_cert_and_key_in_a_directory_that_is_made(tmp_path: Path) -> None:
    created = create_certificate(["box"], tmp_path / "new" / "certs")
    assert (created.cert_path, created.key_path) == (
        tmp_path / "new" / "certs" / "cert.pem",
        tmp_path / "new" / "certs" / "key.pem",
    )


@pytest.mark.parametrize("name", ["cert.pem", "key.pem"])
def test_an_existing_file_is_never_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(ConfigError, match="is not overwritten") as caught:
        create_certificate(["box"], tmp_path)
    assert caught.value.file == str(tmp_path / name)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "precious")]


def test_a_key_that_is_a_link_to_nowhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "key.pem").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is not overwritten"):
        create_certificate(["box"], tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("")
    with pytest.raises(ConfigError, match="cannot be created: "):
        create_certificate(["box"], tmp_path / "occupied" / "certs")


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
