"""The check of the documentation's site for addresses in raw HTML."""

from tools.site_links import missing

FILES = {"docs/pictures/list.png", "docs/web/index.html", "logo.svg"}


def test_a_picture_in_raw_html_must_be_a_file_of_the_site_seen_from_its_page() -> None:
    html = '<p><img src="pictures/list.png" width="240"> <img src="../pictures/list.png"></p>'
    assert missing(html, "docs/web/index.html", FILES) == ["pictures/list.png"]


def test_addresses_of_other_elements_and_several_in_one_attribute_are_checked() -> None:
    html = '<video poster="a.png"></video><source srcset="../../logo.svg 1x, b.png 2x">'
    assert missing(html, "docs/web/index.html", FILES) == ["a.png", "b.png"]


def test_an_address_elsewhere_and_one_within_the_page_are_not_files() -> None:
    html = '<img src="https://example.org/a.png"><img src="data:image/png;base64,AAAA"><img alt="none">'
    assert missing(html, "docs/web/index.html", FILES) == []
