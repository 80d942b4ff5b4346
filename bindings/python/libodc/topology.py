# SPDX-License-Identifier: Apache-2.0
"""The hardware of this machine and the routes to other hosts."""

import ctypes
import json
import os
from typing import Any

from ._abi import lib
from ._arguments import c_path
from .errors import check


def topology(file: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """This machine's packages, NUMA nodes, GPUs and NICs, how near they are to each other, what links GPUs, and the NIC
    and provider that memory on each would use to a host like this one, with the reasons: what `odc topo --json` prints.

    `file`: a recorded machine (hwloc's XML, from `odc topo --save`) instead of this one.
    """
    text = ctypes.c_char_p()
    check(lib.odc_get_topology(None if file is None else c_path("file", file), ctypes.byref(text), None))
    made: dict[str, Any] = json.loads(text.value or b"")
    return made
