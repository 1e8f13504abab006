"""Build hook of hatchling: put the compiled kernels and the files of the web page into the wheel.

The kernels need a C compiler, and the web page npm. A wheel without them works without them.
"""

import os
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src/clearhead/kernels/native")
PAGE = Path("src/clearhead/export/web/static")


class WheelBuildHook(BuildHookInterface):
    """Builds for wheels and editable installs. CLEARHEAD_NO_KERNELS=1 builds a wheel for any system."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        script = Path(self.root, "web", "build.py")  # not copied into the Docker image
        reason = runpy.run_path(str(script))["build"]() if script.is_file() else f"{script} is missing"
        if reason is not None:
            self.app.display_warning(f"without the files of `clearhead export --to web`: {reason}")
        build_data["artifacts"].append(f"{PAGE.as_posix()}/*")
        self._compile_kernels(build_data)

    def _compile_kernels(self, build_data: dict[str, Any]) -> None:
        reason: str | None = "CLEARHEAD_NO_KERNELS is set"
        if not os.environ.get("CLEARHEAD_NO_KERNELS"):
            reason = runpy.run_path(str(Path(self.root, NATIVE, "build.py")))["build"]()
        if reason is not None:
            self.app.display_warning(f"without compiled kernels: {reason}")
            return
        build_data["artifacts"].append(str(NATIVE / "kernels.linux-x86_64.so"))
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
