# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: of all tests those whose turn is ODC_TEST_PART, "0/4" for the first, the fifth, …"""

from __future__ import annotations

import os
from typing import Any


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    part, parts = (int(one) for one in os.environ["ODC_TEST_PART"].split("/"))
    marked = [item for item in items if item.get_closest_marker("cuda")]
    items[:] = marked[part::parts]
