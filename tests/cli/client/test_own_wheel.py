"""The wheel of the program that runs."""

import base64
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from acp_gateway import __version__
from acp_gateway.cli.client.pair_steps import make_own_wheel
from acp_gateway.errors import ConfigError


def test_the_wheel_has_the_program_its_files_and_a_record_of_each() -> None:
    name, content = make_own_wheel()
    assert name == f"acp_remote_gateway-{__version__}-py3-none-any.whl"
    archive = zipfile.ZipFile(io.BytesIO(content))
    names = archive.namelist()
    info = f"acp_remote_gateway-{__version__}.dist-info"
    assert {
        "acp_conformance/runner.py",
        "acp_conformance/fixtures/ids.jsonl",
        "acp_gateway/cli/main.py",
        "acp_gateway/web/index.html",
        "acp_gateway/share/README.md",
        "acp_gateway/share/systemd/acp-gateway.service",
        f"{info}/METADATA",
    } <= set(names)
    assert not any(name.endswith(".pyc") for name in names)
    assert "acp-gateway = acp_gateway." in archive.read(f"{info}/entry_points.txt").decode()
    rows = [line.rsplit(",", 2) for line in archive.read(f"{info}/RECORD").decode().splitlines()]
    assert [row[0] for row in rows] == names
    for path, digest, size in rows[:-1]:
        data = archive.read(path)
        assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert int(size) == len(data)


def test_a_program_that_is_not_installed_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(ConfigError, match="not installed as a package"):
        make_own_wheel()


@pytest.mark.slow
def test_pip_installs_the_wheel_and_the_program_runs(tmp_path: Path) -> None:
    name, content = make_own_wheel()
    (tmp_path / name).write_bytes(content)
    there = tmp_path / "there"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(there)]
    subprocess.run([*pip, str(tmp_path / name)], check=True)
    shown = subprocess.run(
        [sys.executable, "-m", "acp_gateway", "files"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(there)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "systemd/acp-gateway.service" in shown.stdout
    assert (there / "acp_gateway/share/README.md").is_file()
