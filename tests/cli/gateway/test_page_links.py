"""Texts that are printed with a link to the page."""

from pathlib import Path

import pytest

from acp_gateway.cli.gateway import page_links
from acp_gateway.cli.gateway.page_links import advise, print_link, require_page
from acp_gateway.config.load import ListenSection
from acp_gateway.errors import UsageError
from tests.doubles import make_config


def test_a_link_is_printed_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    print_link("https://box.example/#acpgwp_x")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("https://box.example/#acpgwp_x\n", f"{page_links.SIGNS_IN}\n")


def test_in_a_terminal_the_qr_code_of_the_link_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(page_links, "print_qr_code", shown.append)
    monkeypatch.setattr(page_links, "is_terminal", lambda: True)
    print_link("https://box.example/#acpgwp_x")
    assert shown == ["https://box.example/#acpgwp_x"]


def test_a_terminal_gets_a_qr_code(capsys: pytest.CaptureFixture[str]) -> None:
    page_links.print_qr_code("https://box:7443/#acpgwp_x")
    assert "\u2580" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("page", "advice"),
    [
        ("http://127.0.0.1:7080/", "Only a browser on this machine reaches the page. "),
        ("https://localhost/", "Only a browser on this machine reaches the page. "),
        ("https://[::1]:7443/", "Only a browser on this machine reaches the page. "),
        (
            "http://box.example:7080/",
            "Only a browser on this machine reaches the page, and box.example leads nowhere. ",
        ),
        ("https://[::]/", ":: is not an address to go to"),
        ("https://box:7443/", "If a phone does not know the name box"),
        ("https://192.168.1.2:7443/", None),
        ("https://[2001:db8::1]/", None),
        ("https://box.tail1234.ts.net/gateway/", None),
    ],
)
def test_a_link_that_a_phone_does_not_reach_comes_with_advice(page: str, advice: str | None) -> None:
    given = advise(f"{page}#acpgwp_x")
    assert given is None if advice is None else (given or "").startswith(advice)


def test_without_a_listener_with_a_page_the_error_says_what_is_needed(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    object.__setattr__(config, "listen", (ListenSection(url="unix:///run/s"),))
    with pytest.raises(UsageError, match="no listener serves a page"):
        require_page(config, None)
