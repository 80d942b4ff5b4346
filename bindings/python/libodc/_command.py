# SPDX-License-Identifier: Apache-2.0
"""The odc command: the wheel's own, or the one that a distribution's package has installed."""

import os
import shutil
import sys

from ._abi import packaged

_BUNDLED = packaged("bin/odc")


def odc_command() -> str | None:
    return _BUNDLED if os.path.isabs(_BUNDLED) else shutil.which("odc")


def main() -> None:
    """`odc` of the wheel."""
    os.execv(_BUNDLED, ["odc", *sys.argv[1:]])
