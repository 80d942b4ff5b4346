# SPDX-License-Identifier: Apache-2.0
"""The rows of table.sh, from what `odc bench` and `odc replay` print as JSON: table_rows.py ROWS FILE [WORD...]. A row
whose verdict refuses its figures has none, and the reason is told."""
# ruff: noqa: RUF001

import json
import sys
from pathlib import Path

COLUMNS = 5  # after what is measured and its bar


def row(why_not, what, bar, *cells):
    if why_not is not None:
        print(f"table.sh: {what}: not resolved: {why_not}", file=sys.stderr)
        cells = ("not resolved",)
    print("|", " | ".join([what, bar, *cells, *[""] * (COLUMNS - len(cells))]), "|")


def spread(measured, name, form, unit="", factor=1.0):
    """The median, and the least and the largest."""
    median, low, high = (f"{factor * measured[name + end]:{form}}" for end in ("", "_low", "_high"))
    return f"{median}{unit} ({low}–{high})"


def race(file, what, bar, peers):
    measured = read(file)
    loop, ours, limit = (measured[name] for name in ("limit_self_ratio", "gbps", "limit_gbps"))
    ratio = spread(measured, "ratio", ".3f")
    row(measured["why_not_resolved"], what, f"≥ {bar}", ratio, f"{loop:.3f}", f"{ours:.3g}", f"{limit:.3g}", peers)


def sync(file):
    measured = read(file)
    time, limit = spread(measured, "usec", ".2f", " µs"), f"{measured['limit_usec']:.2f} µs"
    row(measured["why_not_resolved"], "sync, n = 2, both ready", "≤ 20 µs", time, "", "", limit)


def claim(file, between):
    measured = read(file)
    rate, limit = spread(measured, "claims_per_second", ".1f", factor=1e-6), 1e-6 * measured["limit_per_second"]
    why_not = measured["why_not_resolved"]
    row(why_not, "claim, n = 2", "≥ 2 million/s together", rate, "", "", f"{limit:.1f} million/s")
    # Between hosts there is no bare loop beside it, and no verdict.
    row(None, "claim between hosts, n = 2, loopback", "≤ 200 µs", spread(read(between), "usec", ".1f", " µs"))


def replay(file):
    """The share of its own ideal of each arm that has a bar."""
    measured = read(file)
    why_not = measured["speedup"]["why_not_resolved"] or ""
    busy = why_not if why_not.startswith("other programs") else None  # other reasons are those of speedups
    for arm in sorted(measured["arms"], key=lambda one: one["schedule"] == "collective"):
        if arm["schedule"] == "collective":
            words, bar = f"collective + {arm['policy']}", 0.95
        elif arm["policy"] == "lb-mini":
            words, bar = "ODC + LB-Mini", 0.97
        else:
            continue
        what = f"`odc replay`, 8 ranks × 8 samples, 7b, {words}: share of its own ideal samples/s"
        row(busy, what, f"≥ {bar}", f"{arm['share_of_ideal']:.3f}")


def read(file):
    return json.loads(Path(file).read_text())


if __name__ == "__main__":
    {"race": race, "sync": sync, "claim": claim, "replay": replay}[sys.argv[1]](*sys.argv[2:])
