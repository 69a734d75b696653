"""Puts the manual page into the wheel: Hatchling runs this when it builds one."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManualPage(BuildHookInterface):
    """Makes the manual page from the commands of the program. They need click, and no other dependency."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the page to the files of a wheel, not to those of an editable installation."""
        if version != "standard":
            return
        sys.path.insert(0, self.root)
        from tools.man_page import make_page

        page = Path(self.directory) / "acp-gateway.1"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(make_page(), encoding="utf-8")
        build_data["shared_data"][str(page)] = "share/man/man1/acp-gateway.1"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the page from the folder of the built wheel."""
        (Path(self.directory) / "acp-gateway.1").unlink(missing_ok=True)
