# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: of all tests those whose turn is ODC_TEST_PART, "0/4" for the first, the fifth, …; what came of
each goes into the file ODC_TEST_LINES at once, one JSON object a line, where --junitxml is written at the end."""

from __future__ import annotations

import json
import os
from typing import Any


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    part, parts = (int(one) for one in os.environ["ODC_TEST_PART"].split("/"))
    marked = [item for item in items if item.get_closest_marker("cuda")]
    items[:] = marked[part::parts]


def pytest_runtest_logreport(report: Any) -> None:
    """A line when a test has been called, and where it was not, or failed after that: a later line is what counts."""
    if report.when != "call" and report.passed:
        return
    reason = "" if report.passed else report.longreprtext
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
    line = {"test": report.nodeid, "outcome": report.outcome, "reason": reason, "seconds": report.duration}
    with open(os.environ["ODC_TEST_LINES"], "a") as file:
        print(json.dumps(line), file=file, flush=True)
