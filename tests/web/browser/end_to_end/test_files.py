"""Files of a session with a real gateway: a page loads them with its cookie, and other pages and reports do not."""

from base64 import b64decode
from pathlib import Path

from playwright.sync_api import expect

from tests.web.browser.conftest import PHONE
from tests.web.browser.end_to_end.conftest import PageGateway, SignIn
from tests.web.browser.scenes import picture

LOAD = """(address) => fetch(address, { headers: { Range: "bytes=2-5" } }).then(async (response) =>
  [response.status, await response.text(), response.headers.get("Content-Range")])"""


def test_a_page_shows_loads_and_writes_files_of_its_session(
    gateway: PageGateway, sign_in: SignIn, tmp_path: Path
) -> None:
    folder = Path(gateway.folder)
    (folder / "loss.png").write_bytes(b64decode(picture()))
    (folder / "run.csv").write_text("0123456789")
    (folder / "report.html").write_text("<h1>Report</h1><script>top.location = 'https://evil.example/'</script>")
    (folder / ".env").write_text("secret")
    session = gateway.session("Plot")
    page = sign_in(f"/s/{session}/files")
    expect(page.get_by_role("link", name="loss.png")).to_be_visible()
    expect(page.locator(".file-closed")).to_contain_text(".env")
    page.get_by_role("link", name="loss.png").click()
    image = page.locator(".files-body .picture")
    expect(image).to_be_visible()
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    there = f"./files?session={session}&path=run.csv&as=view"
    assert page.evaluate(LOAD, there) == [206, "2345", "bytes 2-5/10"]
    assert page.evaluate(LOAD, there.replace("run.csv", ".env"))[0] == 403
    assert page.evaluate(LOAD, there.replace("run.csv", "/etc/passwd"))[0] == 403
    page.evaluate("location.hash = location.hash.replace(/files.*/, 'files/report.html')")
    expect(page.frame_locator(".file-frame").get_by_role("heading", name="Report")).to_be_visible()
    assert page.url.startswith(gateway.url)
    phone = sign_in(f"/s/{session}/files", size=PHONE, touch=True)
    (tmp_path / "photo.jpg").write_bytes(bytes(200_000))
    phone.locator(".files-body input[type=file]").set_input_files(tmp_path / "photo.jpg")
    expect(phone.get_by_role("link", name="photo.jpg")).to_be_visible()
    assert (folder / "photo.jpg").read_bytes() == bytes(200_000)
    with phone.expect_download() as started:
        phone.get_by_role("link", name="As zip").click()
    assert started.value.suggested_filename.endswith(".zip")
