# SPDX-License-Identifier: Apache-2.0
"""The picture of a trace: a row for each rank, with a strip below for its other threads. Imports matplotlib."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .recording import Event, RankTrace

Interval = tuple[int, int]
"""Begin and end in nanoseconds."""

Layer = tuple[str, list[Interval]]
"""A colour and the intervals in which it is shown."""

_MOST_RANKS = 64
_MOST_NAMED = 5  # ranks in the title
_MOST_MINIBATCHES = 40  # with lines at their ends
_WIDTH, _DPI, _SHARE = 13, 140, 0.865  # inches, dots per inch, part of the width that has the rows
_COMPUTE = ("#2f5f9e", "#6f9fd8", "#16324f", "#a9c7ea")  # spans by name; the others are in the last
_GATHER, _SCATTER_ADD, _WAITING, _NEITHER = "#1f8a5b", "#8c4f9f", "#f7c9a9", "#edf0f3"
_INK, _FAINT = "#1d2733", "#5d6b7a"


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time in disjoint, sorted intervals."""
    made: list[Interval] = []
    for begin, end in sorted(intervals):
        if made and begin <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        else:
            made.append((begin, end))
    return made


def without(intervals: list[Interval], holes: list[Interval]) -> list[Interval]:
    """The part of `intervals` outside `holes`; both disjoint and sorted."""
    made = []
    number = 0
    for at, end in intervals:
        while number < len(holes) and holes[number][1] <= at:
            number += 1
        while number < len(holes) and holes[number][0] < end:
            if at < holes[number][0]:
                made.append((at, holes[number][0]))
            at = holes[number][1]
            if at >= end:  # the hole may extend into the next interval
                break
            number += 1
        if at < end:
            made.append((at, end))
    return made


def computing(one: RankTrace) -> list[Interval]:
    """The intervals in which a thread was in a span, but not in a call within it."""
    made: list[Interval] = []
    for _, events in groupby(sorted(one.events, key=lambda e: e.thread), key=lambda e: e.thread):
        mine = list(events)
        spans = union((e.begin_ns, e.end_ns) for e in mine if not e.call)
        made += without(spans, union((e.begin_ns, e.end_ns) for e in mine if e.call))
    return union(made)


def idle_share(one: RankTrace) -> float:
    """The part of the traced time in which the rank was not computing."""
    return 1 - sum(end - begin for begin, end in computing(one)) / max(1, one.end_ns - one.begin_ns)


def _with_spans(ranks: list[RankTrace]) -> list[RankTrace]:
    """For a rank without spans, all time outside of calls counts as computing."""
    if any(not event.call for one in ranks for event in one.events):
        return ranks
    return [
        replace(one, events=[Event("", "outside of calls", 0, 0, one.begin_ns, one.end_ns, 0, ""), *one.events])
        for one in ranks
    ]


def _layers(events: list[Event], shades: dict[str, str]) -> list[Layer]:
    """In the order of painting: inner spans are painted later."""
    made: list[Layer] = []
    spans = sorted((e for e in events if not e.call), key=lambda e: (e.begin_ns, -e.end_ns))
    depth: list[int] = []  # ends of the open spans
    levels: list[dict[str, list[Interval]]] = []
    for span in spans:
        while depth and depth[-1] <= span.begin_ns:
            depth.pop()
        if len(levels) == len(depth):
            levels.append({})
        levels[len(depth)].setdefault(shades[span.name], []).append((span.begin_ns, span.end_ns))
        depth.append(span.end_ns)
    for level in levels:
        made += list(level.items())
    calls: dict[str, list[Interval]] = {_GATHER: [], _SCATTER_ADD: [], _WAITING: []}
    for event in (e for e in events if e.call):
        moves = event.call.startswith(("gather", "scatter_add"))
        waited = event.begin_ns + event.waited_ns if moves else event.end_ns
        calls[_WAITING].append((event.begin_ns, waited))
        if moves:
            calls[_GATHER if event.call.startswith("gather") else _SCATTER_ADD].append((waited, event.end_ns))
    return made + list(calls.items())


class Drawing:
    def __init__(self, ranks: list[RankTrace]) -> None:
        self._ranks = _with_spans(ranks)
        self._shown = self._ranks[:_MOST_RANKS]
        self._origin_ns = min(one.begin_ns for one in self._ranks)
        self._duration_ns = max(one.end_ns for one in self._ranks) - self._origin_ns
        self._unit_ns, self._unit = (1e9, "s") if self._duration_ns >= 2e9 else (1e6, "ms")
        self._idle = [idle_share(one) for one in self._ranks]
        self._strips = any(event.thread > 0 for one in self._shown for event in one.events)
        spans: Counter[str] = Counter()
        for event in (e for one in self._shown for e in one.events if not e.call):
            spans[event.name] += event.end_ns - event.begin_ns
        self._named = [name for name, _ in spans.most_common(len(_COMPUTE) - (len(spans) > len(_COMPUTE)))]
        self._shades = dict.fromkeys(spans, _COMPUTE[-1]) | dict(zip(self._named, _COMPUTE, strict=False))
        row = max(0.14, min(0.46, 8 / len(self._shown)))
        self._small = 9 if row > 0.2 else 6  # points, of the words beside a row
        self._height = 1.8 + row * len(self._shown)
        self._figure = Figure(figsize=(_WIDTH, self._height), dpi=_DPI)
        self._axes: Any = self._figure.add_axes((0.065, 0.82 / self._height, _SHARE, 1 - 1.8 / self._height))

    def save(self, path: Path) -> None:
        for number, one in enumerate(self._shown):
            self._row(number, one)
        self._minibatch_ends()
        self._axis()
        self._words()
        self._legend()
        self._figure.savefig(path)

    def _at(self, ns: float) -> float:
        return (ns - self._origin_ns) / self._unit_ns

    def _lane(self, top: float, height: float, layers: list[Layer]) -> None:
        """Colours each column of pixels by each layer's share of its time, so that events shorter than a pixel are
        visible in proportion."""
        edges = self._origin_ns + np.linspace(0, self._duration_ns, round(_WIDTH * _DPI * _SHARE) + 1)
        pixels = np.ones((len(edges) - 1, 3))
        for colour, intervals in layers:
            disjoint = np.array(union(intervals), dtype=np.float64)
            if len(disjoint) == 0:
                continue
            covered = np.insert(np.cumsum(disjoint[:, 1] - disjoint[:, 0]), 0, 0.0)
            until = np.interp(edges, disjoint.ravel(), np.repeat(covered, 2)[1:-1])
            share = (np.diff(until) / np.diff(edges))[:, np.newaxis]
            pixels = pixels * (1 - share) + np.array(to_rgb(colour)) * share
        extent = (0, self._duration_ns / self._unit_ns, top + height, top)
        self._axes.imshow(
            pixels[np.newaxis].clip(0, 1), extent=extent, aspect="auto", interpolation="nearest", zorder=1
        )

    def _row(self, number: int, one: RankTrace) -> None:
        main, strip = (0.66, 0.16) if self._strips else (0.82, 0.0)
        top = number - 0.41
        traced: Layer = (_NEITHER, [(one.begin_ns, one.end_ns)])
        self._lane(top, main, [traced, *_layers([e for e in one.events if e.thread == 0], self._shades)])
        if self._strips:
            self._lane(top + main, strip, _layers([e for e in one.events if e.thread > 0], self._shades))
        self._axes.annotate(
            f"{100 * self._idle[number]:.0f} %",
            (1.008, number),
            xycoords=("axes fraction", "data"),
            va="center",
            color=_INK,
            fontsize=self._small,
        )

    def _minibatch_ends(self) -> None:
        ends: dict[int, int] = {}
        for event in (e for one in self._ranks for e in one.events if e.call == "sync" and not e.error):
            ends[event.minibatch] = max(ends.get(event.minibatch, 0), event.end_ns)
        if len(ends) <= _MOST_MINIBATCHES:
            for end in ends.values():
                self._axes.axvline(self._at(end), color=_INK, linewidth=0.9, linestyle=(0, (4, 3)))

    def _axis(self) -> None:
        axes = self._axes
        axes.set_xlim(0, self._duration_ns / self._unit_ns)
        axes.set_ylim(len(self._shown) - 0.5, -0.5)
        axes.set_xlabel(f"time, {self._unit}", color=_INK)
        axes.set_yticks(range(len(self._shown)), [f"rank {one.rank}" for one in self._shown])
        axes.tick_params(axis="y", length=0, labelsize=self._small)
        axes.tick_params(axis="x", labelsize=9, color=_FAINT)
        for side in ("left", "right", "top"):
            axes.spines[side].set_visible(False)

    def _words(self) -> None:
        idle = [f"{100 * share:.0f} %" for share in self._idle]
        if len(idle) <= _MOST_NAMED:
            shares = ", ".join(f"rank {one.rank} {share}" for one, share in zip(self._ranks, idle, strict=True))
        else:
            least, most = (pick(range(len(idle)), key=self._idle.__getitem__) for pick in (min, max))
            mean = 100 * sum(self._idle) / len(idle)
            shares = f"mean {mean:.0f} %, from {idle[least]} (rank {least}) to {idle[most]} (rank {most})"
        count = len({e.minibatch for one in self._ranks for e in one.events if e.call == "sync" and not e.error})
        length = f"{self._duration_ns / self._unit_ns:.4g} {self._unit}"
        text = f"ranks: {len(idle)}, minibatches: {count}, time: {length}; idle: {shares}"
        if len(self._shown) < len(idle):
            text += f"; the first {len(self._shown)} are shown"
        self._figure.text(0.065, 1 - 0.32 / self._height, text, fontsize=12.5, fontweight="bold", color=_INK)
        below = "dashed: end of a minibatch; idle: part of the traced time outside of spans, or in a call within one"
        below += "; strip below a row: the rank's other threads" * self._strips
        self._figure.text(0.065, 0.14 / self._height, below, fontsize=9, color=_FAINT)
        self._axes.annotate("idle", (1.008, 1.0), (0, 6), "axes fraction", "offset points", color=_FAINT, fontsize=9)

    def _legend(self) -> None:
        entries: list[Any] = [Patch(color=self._shades[name], label=name) for name in self._named]
        if len(self._shades) > len(self._named):
            entries.append(Patch(color=_COMPUTE[-1], label="other spans"))
        entries += [
            Patch(color=colour, label=label)
            for colour, label in (
                (_GATHER, "gather"),
                (_SCATTER_ADD, "scatter_add"),
                (_WAITING, "waiting (sync, publish, locks)"),
                (_NEITHER, "none of these"),
            )
        ]
        self._figure.legend(
            handles=entries,
            loc="upper left",
            bbox_to_anchor=(0.058, 1 - 0.4 / self._height),
            ncols=len(entries),
            frameon=False,
            fontsize=9,
            handlelength=1.6,
            columnspacing=1.6,
        )


def draw_timeline(path: Path, ranks: list[RankTrace]) -> None:
    Drawing(ranks).save(path)
