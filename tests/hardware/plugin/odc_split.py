# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: runs the tests of part ODC_TEST_PART ("0/4": the first, the fifth, …); writes each result at once
to the file ODC_TEST_LINES, one JSON object a line, whereas --junitxml writes at the end."""

from __future__ import annotations

import json
import os
from typing import Any


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    part, parts = (int(one) for one in os.environ["ODC_TEST_PART"].split("/"))
    marked = [item for item in items if item.get_closest_marker("cuda")]
    items[:] = marked[part::parts]


def pytest_runtest_logreport(report: Any) -> None:
    """Writes a line when a test has been called, and when it fails before or after that: the last line counts."""
    if report.when != "call" and report.passed:
        return
    reason = "" if report.passed else report.longreprtext
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
    line = {"test": report.nodeid, "outcome": report.outcome, "reason": reason, "seconds": report.duration}
    with open(os.environ["ODC_TEST_LINES"], "a") as file:
        print(json.dumps(line), file=file, flush=True)
