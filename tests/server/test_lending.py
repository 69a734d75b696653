"""The certificate and the section by which lent connections are served."""

from dataclasses import replace
from pathlib import Path

from acp_gateway.config.load import ListenSection
from acp_gateway.security.certificates import read_certificate
from acp_gateway.server.lending import lent_section, own_certificate
from tests.kit.doubles import make_config


def test_lent_connections_are_served_as_by_the_first_listener_with_tls_for_any_host_and_no_user(tmp_path: Path) -> None:
    metrics = ListenSection(url="wss://0.0.0.0:1", cert=tmp_path / "m", key=tmp_path / "k", serves=("metrics",))
    lines = ListenSection(url="tcp+tls://0.0.0.0:2", cert=tmp_path / "l", key=tmp_path / "k")
    page = ListenSection(
        url="wss://127.0.0.1:3", cert=tmp_path / "c", key=tmp_path / "k", serves=("acp", "chat"), local_user=True
    )
    config = make_config(tmp_path, "ws://127.0.0.1:0")
    section = lent_section(replace(config, listen=(*config.listen, metrics, lines, page)))
    assert (section.cert, section.services) == (tmp_path / "c", ("acp", "chat"))
    # A client's own name for the node is as good as any, and the gateway's user is not at the other end.
    assert not section.address.loopback
    assert not section.accepts_local_user


def test_without_such_a_listener_they_have_a_certificate_of_their_own_that_stays(tmp_path: Path) -> None:
    section = lent_section(make_config(tmp_path, "ws://127.0.0.1:0"))
    assert section.cert == tmp_path / "lending" / "cert.pem"
    assert section.services == ("acp", "page", "ports", "ahp")
    pin = read_certificate(section.cert).pin
    assert (tmp_path / "lending" / "key.pem").stat().st_mode & 0o777 == 0o600
    assert own_certificate(tmp_path) == (section.cert, section.key)
    assert read_certificate(section.cert).pin == pin
