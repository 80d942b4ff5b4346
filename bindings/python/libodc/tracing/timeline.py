# SPDX-License-Identifier: Apache-2.0
"""The picture of a trace, or of several on one time axis: a row for each rank, with a strip below for its other
threads. Imports matplotlib."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .recorder import Event, RankTrace

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
_CALLS = ((_GATHER, "gather"), (_SCATTER_ADD, "scatter_add"))
_LINE = 0.19  # inches
_ABOVE, _BELOW, _HEAD = 0.98, 0.82, 0.44  # inches: above and below all rows, and between panels
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


class Panel:
    """One trace's rows, with each rank's idle share beside it."""

    def __init__(self, ranks: list[RankTrace], idle: list[float]) -> None:
        self.ranks = ranks
        self.idle = idle
        self.shown = self.ranks[:_MOST_RANKS]
        self.origin_ns = min(one.begin_ns for one in ranks)
        self.duration_ns = max(one.end_ns for one in ranks) - self.origin_ns
        self.strips = any(event.thread > 0 for one in self.shown for event in one.events)
        self.axes: Any = None

    def minibatch_ends(self) -> dict[int, int]:
        ends: dict[int, int] = {}
        for event in (e for one in self.ranks for e in one.events if e.call == "sync" and not e.error):
            ends[event.minibatch] = max(ends.get(event.minibatch, 0), event.end_ns)
        return ends

    def idle_text(self) -> str:
        idle = [f"{100 * share:.0f} %" for share in self.idle]
        if len(idle) <= _MOST_NAMED:
            return ", ".join(f"rank {one.rank} {share}" for one, share in zip(self.ranks, idle, strict=True))
        least, most = (pick(range(len(idle)), key=self.idle.__getitem__) for pick in (min, max))
        mean = 100 * sum(self.idle) / len(idle)
        return f"mean {mean:.0f} %, from {idle[least]} (rank {least}) to {idle[most]} (rank {most})"


class Drawing:
    """`verdict` is below the title, as many lines as it has. `waiting` and `rest` say what calls besides gather and
    scatter_add are, and what is no event."""

    def __init__(
        self, titled: Mapping[str, Panel], title: str, note: str, *, verdict: str, waiting: str, rest: str
    ) -> None:
        panels = list(titled.values())
        self._titled, self._panels, self._title, self._note = titled, panels, title, note
        self._duration_ns = max(panel.duration_ns for panel in panels)
        self._unit_ns, self._unit = (1e9, "s") if self._duration_ns >= 2e9 else (1e6, "ms")
        self._kinds = dict(_CALLS) | {_WAITING: waiting, _NEITHER: rest}
        self._painted: set[str] = set()
        spans: Counter[str] = Counter()
        for event in (e for panel in panels for one in panel.shown for e in one.events if not e.call):
            spans[event.name] += event.end_ns - event.begin_ns
        self._named = [name for name, _ in spans.most_common(len(_COMPUTE) - (len(spans) > len(_COMPUTE)))]
        self._shades = dict.fromkeys(spans, _COMPUTE[-1]) | dict(zip(self._named, _COMPUTE, strict=False))
        rows = sum(len(panel.shown) for panel in panels)
        row = max(0.14, min(0.46, 8 / rows))
        self._small = 9 if row > 0.2 else 6  # points, of the words beside a row
        heads = [_HEAD * (number > 0) for number in range(len(panels))]
        self._verdict, self._lines = verdict, _LINE * len(verdict.splitlines())
        self._height = _ABOVE + self._lines + _BELOW + row * rows + sum(heads)
        self._figure = Figure(figsize=(_WIDTH, self._height), dpi=_DPI)
        top = self._height - _ABOVE - self._lines
        for panel, head in zip(panels, heads, strict=True):
            height = row * len(panel.shown)
            top -= head + height
            panel.axes = self._figure.add_axes((0.065, top / self._height, _SHARE, height / self._height))

    def save(self, path: Path) -> None:
        for name, panel in self._titled.items():
            for number, one in enumerate(panel.shown):
                self._row(panel, number, one)
            self._minibatch_ends(panel)
            self._axis(panel)
            self._panel_text(panel, name)
        self._title_text()
        self._legend()
        self._figure.savefig(path)

    def _lane(self, panel: Panel, top: float, height: float, layers: list[Layer]) -> None:
        """Colours each column of pixels by each layer's share of its time, so that events shorter than a pixel are
        visible in proportion."""
        edges = panel.origin_ns + np.linspace(0, self._duration_ns, round(_WIDTH * _DPI * _SHARE) + 1)
        pixels = np.ones((len(edges) - 1, 3))
        for colour, intervals in layers:
            disjoint = np.array(union(intervals), dtype=np.float64)
            if len(disjoint) == 0:
                continue
            self._painted.add(colour)
            covered = np.insert(np.cumsum(disjoint[:, 1] - disjoint[:, 0]), 0, 0.0)
            until = np.interp(edges, disjoint.ravel(), np.repeat(covered, 2)[1:-1])
            share = (np.diff(until) / np.diff(edges))[:, np.newaxis]
            pixels = pixels * (1 - share) + np.array(to_rgb(colour)) * share
        extent = (0, self._duration_ns / self._unit_ns, top + height, top)
        panel.axes.imshow(
            pixels[np.newaxis].clip(0, 1), extent=extent, aspect="auto", interpolation="nearest", zorder=1
        )

    def _row(self, panel: Panel, number: int, one: RankTrace) -> None:
        main, strip = (0.66, 0.16) if panel.strips else (0.82, 0.0)
        top = number - 0.41
        traced: Layer = (_NEITHER, [(one.begin_ns, one.end_ns)])
        mine = [e for e in one.events if e.thread == 0]
        self._lane(panel, top, main, [traced, *_layers(mine, self._shades)])
        if panel.strips:
            others = [e for e in one.events if e.thread > 0]
            self._lane(panel, top + main, strip, _layers(others, self._shades))
        panel.axes.annotate(
            f"{100 * panel.idle[number]:.0f} %",
            (1.008, number),
            xycoords=("axes fraction", "data"),
            va="center",
            color=_INK,
            fontsize=self._small,
        )

    def _minibatch_ends(self, panel: Panel) -> None:
        ends = panel.minibatch_ends().values()
        if len(ends) <= _MOST_MINIBATCHES:
            for end in ends:
                at = (end - panel.origin_ns) / self._unit_ns
                panel.axes.axvline(at, color=_INK, linewidth=0.9, linestyle=(0, (4, 3)))

    def _axis(self, panel: Panel) -> None:
        axes, last = panel.axes, panel is self._panels[-1]
        axes.set_xlim(0, self._duration_ns / self._unit_ns)
        axes.set_ylim(len(panel.shown) - 0.5, -0.5)
        axes.set_yticks(range(len(panel.shown)), [f"rank {one.rank}" for one in panel.shown])
        axes.tick_params(axis="y", length=0, labelsize=self._small)
        axes.tick_params(axis="x", labelsize=9, color=_FAINT, bottom=last, labelbottom=last)
        for side in ("left", "right", "top") if last else ("left", "right", "top", "bottom"):
            axes.spines[side].set_visible(False)
        if last:
            axes.set_xlabel(f"time, {self._unit}", color=_INK)

    def _panel_text(self, panel: Panel, name: str) -> None:
        if name:
            title = panel.axes.annotate(
                name,
                (0, 1),
                (0, 7),
                "axes fraction",
                "offset points",
                color=_INK,
                fontsize=10,
                fontweight="bold",
            )
            mean = sum(panel.idle) / len(panel.idle)
            duration = panel.duration_ns / self._unit_ns
            shown = f"{duration:.0f}" if duration >= 100 else f"{duration:.3g}"
            label = f"{shown} {self._unit}, mean idle {100 * mean:.0f} %"
            panel.axes.annotate(label, (1, 0), (10, 0), title, "offset points", color=_FAINT, fontsize=10, va="bottom")
        panel.axes.annotate("idle", (1.008, 1.0), (0, 6), "axes fraction", "offset points", color=_FAINT, fontsize=9)

    def _title_text(self) -> None:
        self._figure.text(0.065, 1 - 0.32 / self._height, self._title, fontsize=12.5, fontweight="bold", color=_INK)
        below = 1 - (0.32 + self._lines) / self._height
        self._figure.text(0.065, below, self._verdict, fontsize=9.5, color=_INK)
        self._figure.text(0.065, 0.14 / self._height, self._note, fontsize=9, color=_FAINT)

    def _legend(self) -> None:
        entries: list[Any] = [Patch(color=self._shades[name], label=name) for name in self._named]
        if len(self._shades) > len(self._named):
            entries.append(Patch(color=_COMPUTE[-1], label="other spans"))
        entries += [
            Patch(color=colour, label=label) for colour, label in self._kinds.items() if colour in self._painted
        ]
        self._figure.legend(
            handles=entries,
            loc="upper left",
            bbox_to_anchor=(0.058, 1 - (0.4 + self._lines) / self._height),
            ncols=len(entries),
            frameon=False,
            fontsize=9,
            handlelength=1.6,
            columnspacing=1.6,
        )


def draw_timeline(path: Path, ranks: list[RankTrace]) -> None:
    ranks = _with_spans(ranks)
    panel = Panel(ranks, [idle_share(one) for one in ranks])
    unit_ns, unit = (1e9, "s") if panel.duration_ns >= 2e9 else (1e6, "ms")
    length = f"{panel.duration_ns / unit_ns:.4g} {unit}"
    title = f"ranks: {len(ranks)}, minibatches: {len(panel.minibatch_ends())}, time: {length}"
    title += f"; idle: {panel.idle_text()}"
    if len(panel.shown) < len(ranks):
        title += f"; the first {len(panel.shown)} are shown"
    note = "dashed: end of a minibatch; idle: part of the traced time outside of spans, or in a call within one"
    note += "; strip below a row: the rank's other threads" * panel.strips
    Drawing({"": panel}, title, note, verdict="", waiting="waiting (sync, publish, locks)", rest="none of these").save(
        path
    )


def draw_schedules(
    path: Path, title: str, panels: Mapping[str, Panel], note: str, *, verdict: str = "", waiting: str, rest: str
) -> None:
    """The same work in several ways: a panel for each, below its name, on one time axis from its begin. `verdict`,
    `waiting` and `rest`: see Drawing."""
    Drawing(panels, title, note, verdict=verdict, waiting=waiting, rest=rest).save(path)
