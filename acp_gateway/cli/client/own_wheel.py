"""Makes a wheel of the program that runs, to install the same version on another machine.

The program is not in a public index, and another machine must not fetch whatever has its name there. Only its
dependencies come from the index.
"""

import base64
import hashlib
import io
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Final

from acp_gateway import DISTRIBUTION
from acp_gateway.cli.files import find_files, share_root
from acp_gateway.errors import ConfigError

_WHEEL: Final = "Wheel-Version: 1.0\nGenerator: acp-gateway\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
PACKAGES: Final = ("acp_conformance", "acp_gateway")
_LEFT_OUT: Final = ("__pycache__", "share")


def make_own_wheel() -> tuple[str, bytes]:
    """Return the file name and the content of a wheel of this program. Raises `ConfigError` if it is not installed."""
    try:
        known = metadata.distribution(DISTRIBUTION)
        version, described, entry_points = (
            known.version,
            known.read_text("METADATA"),
            known.read_text("entry_points.txt"),
        )
    except metadata.PackageNotFoundError:
        version, described, entry_points = "", None, None
    if described is None or entry_points is None:
        raise ConfigError("this program is not installed as a package, so it can't be installed elsewhere from here")
    name = f"{DISTRIBUTION.replace('-', '_')}-{version}"
    files = _package_files()
    files |= {
        f"{name}.dist-info/METADATA": described.encode(),
        f"{name}.dist-info/WHEEL": _WHEEL.encode(),
        f"{name}.dist-info/entry_points.txt": entry_points.encode(),
    }
    record = "".join(f"{path},sha256={_digest(content)},{len(content)}\n" for path, content in files.items())
    files[f"{name}.dist-info/RECORD"] = f"{record}{name}.dist-info/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            info = zipfile.ZipInfo(path, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    return f"{name}-py3-none-any.whl", packed.getvalue()


def _package_files() -> dict[str, bytes]:
    """Return the files of the packages by their names in the wheel, those of `share` wherever they are now."""
    place = Path(__file__).parents[3]
    found = {
        path.relative_to(place).as_posix(): path.read_bytes()
        for package in PACKAGES
        for path in sorted((place / package).rglob("*"))
        if path.is_file() and path.suffix != ".pyc" and not set(_LEFT_OUT) & set(path.relative_to(place).parts)
    }
    root = share_root()
    return found | {f"acp_gateway/share/{name}": (root / name).read_bytes() for name in find_files(root)}


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
