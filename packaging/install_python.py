#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs the Python files, as distributions' packages have them, over the system's libodc: install_python.py FOLDER
INSTALLER, where FOLDER is a site-packages, and INSTALLER the tool that will own them there."""

import re
import shutil
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent


def metadata(version: str) -> str:
    project = tomllib.loads((ROOT / "bindings/python/pyproject.toml").read_text())["project"]
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"License: {project['license']['text']}",
        f"Requires-Python: {project['requires-python']}",
    ]
    for extra, needed in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {one}; extra == '{extra}'" for one in needed]
    return "\n".join(lines) + "\n"


def main() -> None:
    folder, installer = Path(sys.argv[1]), sys.argv[2]
    header = (ROOT / "include/odc/odc.h").read_text()
    version = ".".join(re.findall(r"#define ODC_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    shutil.copytree(
        ROOT / "bindings/python/libodc",
        folder / "libodc",
        ignore=lambda _, names: [name for name in names if name.endswith(".so") or name == "__pycache__"],
    )
    info = folder / f"libodc-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(metadata(version))
    (info / "INSTALLER").write_text(f"{installer}\n")


main()
