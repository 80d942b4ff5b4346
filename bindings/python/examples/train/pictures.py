# SPDX-License-Identifier: Apache-2.0
"""The pictures of a report (PNG, by Matplotlib), and the page that shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median, quantiles, stdev
from textwrap import fill
from typing import Any

import matplotlib
from arms import COLLECTIVE, COLLECTIVE_ROWS, FSDP, ODC_CLAIMS, ODC_FLAT, ODC_MICRO, ODC_MINI, Arm
from experiment import ROUNDING, ArmRecord, Records
from figures import ArmFigures, Gain
from load import resolved
from trainer import Step, idle_share

from libodc.tracing.recorder import Event, RankTrace
from libodc.tracing.timeline import Panel, draw_schedules, union, without

matplotlib.use("Agg")
from matplotlib import pyplot as pyplot  # re-exported, so that others get it with this backend

_ARM_COLOURS = {
    FSDP: "#7f8c8d",
    COLLECTIVE: "#c0392b",
    COLLECTIVE_ROWS: "#8e44ad",
    ODC_MICRO: "#d68910",
    ODC_FLAT: "#2e86c1",
    ODC_MINI: "#1e8449",
    ODC_CLAIMS: "#6c3483",
}
_BAR = "#7fb3d5"
_LEAST_SHOWN = 1e-10  # differences below are drawn there, as a log axis has no zero
_FENCE = 3.0  # times the distance of the quartiles above the upper one: beyond is an outlier (Tukey's far out)
_LEAST_QUANTILES = 4  # of fewer values none is an outlier
_CUT = 1.25  # times the largest regular value
_VERDICT_COLUMNS = 130
_ROOM = 1.12  # above the highest bar, for its figure


class Pictures:
    """`title` and `verdict` are above each."""

    def __init__(self, directory: Path, title: str, verdict: str = "") -> None:
        self._directory = directory
        self._title = title
        self._verdict = fill(verdict, _VERDICT_COLUMNS)
        self._resolved = resolved(verdict)
        self._captions: dict[str, str] = {}

    def gains(self, gains: Sequence[Gain]) -> None:
        """Each gain's ratios and their median: figures and full bars where the verdict does not refuse it."""
        figure, axes = pyplot.subplots(figsize=(10, 1.6 + 0.55 * len(gains)))
        top = max(robust_top(gain.ratios) for gain in gains)
        labels = [f"{gain.of}: {gain.over.name}\nover {gain.under.name}" for gain in gains]
        for place, gain in enumerate(gains):
            axes.barh(place, gain.median, 0.6, **self._bar(_BAR))
            shown = [ratio for ratio in gain.ratios if ratio <= top]
            axes.plot(shown, [place] * len(shown), "o", color="black", markersize=4)
            self._write_gain(axes, place, f"{gain.median:.2f}x", fontsize=11, fontweight="bold")
            cut = ", ".join(f"{ratio:.2f}x" for ratio in gain.ratios if ratio > top)
            if cut and self._resolved:
                axes.text(top * 1.01, place, f"> {cut}", va="center", fontsize=8)
        axes.barh(0, 0, **self._bar(_BAR), label="median of all pairs of turns")
        axes.plot([], "o", color="black", markersize=4, label="one pair of turns, beside each other in time")
        axes.axvline(1, color="black", linewidth=0.8, linestyle="--", label="equally fast")
        axes.set_yticks(range(len(gains)), labels, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlim(0, top * _ROOM)
        axes.set_xlabel("times as fast on the same minibatches")
        self._legend(axes)
        self._save(figure, "gains", "How many times as fast each step makes the training, and several steps together.")

    def timeline(self, records: Records, minibatches: range, *, idle: str) -> None:
        """One minibatch in the collective schedule, and what the schedule and the plan change; nothing where it is
        unknown when ranks compute. `idle`: what a rank is then."""
        pictured = {arm: record for arm, record in records.items() if arm is not FSDP}
        if not any(step.spans for record in records.values() for steps in record.steps for step in steps):
            return
        number = _typical(pictured, minibatches)
        panels = {arm.name: _panel(record, number) for arm, record in pictured.items()}
        name = "timeline.png"
        draw_schedules(
            self._directory / name,
            f"{self._title}, minibatch {number}",
            panels,
            f"each from its own begin; dashed: end of a minibatch; idle: {idle}; the table has that of all minibatches",
            verdict=self._verdict,
            waiting="not in a block: waiting for other ranks, moving bytes, Python",
            rest="optimizer",
        )
        self._captions[name] = (
            "One minibatch, the one of median gain: the same samples in each schedule, on one time axis."
        )

    def idle(self, figures: Sequence[ArmFigures]) -> None:
        """For each arm, the share of the time that each rank was idle."""
        known = [figure for figure in figures if figure.rank_idle]
        if not known:
            return
        picture, axes = pyplot.subplots(figsize=(10, 4.2))
        width = 0.8 / len(known)
        top = robust_top([100 * share for figure in known for share in figure.rank_idle])
        for place, figure in enumerate(known):
            label = f"{figure.arm.name}: mean {figure.idle:.1%}"
            for rank, share in enumerate(figure.rank_idle):
                at = rank - 0.4 + width * (place + 0.5)
                colour = _ARM_COLOURS[figure.arm]
                axes.bar(at, min(100 * share, top), 0.94 * width, color=colour, label=label if rank == 0 else None)
                if 100 * share > top:
                    _write_cut(axes, at, top, [f"{share:.0%}"])
                else:
                    axes.text(at, 100 * share + 0.01 * top, f"{100 * share:.0f}", ha="center", fontsize=8)
        axes.set_xticks(*zip(*((rank, f"rank {rank}") for rank in range(len(known[0].rank_idle))), strict=True))
        axes.set_ylabel("idle, % of the time")
        axes.set_ylim(0, top * _ROOM)
        self._legend(axes, columns=2)
        self._save(picture, "idle", "The share of the time in which each rank did not compute, by schedule.")

    def losses(self, records: Records, differences: Mapping[Arm, Sequence[float]]) -> None:
        """Each arm's loss by minibatch, and below its relative difference to the first arm's, on a log axis."""
        figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(10, 6.2))
        first = next(iter(records))
        for place, (arm, record) in enumerate(records.items()):
            # Equal curves overlap: later ones are thinner.
            width = 2 + 2 * (len(records) - 1 - place)
            above.plot(record.losses(), color=_ARM_COLOURS[arm], linewidth=width, label=arm.name)
        for arm, values in differences.items():
            shown = [max(value, _LEAST_SHOWN) for value in values]
            below.semilogy(shown, "o-", color=_ARM_COLOURS[arm], markersize=3, linewidth=1, label=arm.name)
        above.set_ylabel("training loss, nats a token")
        above.legend(fontsize=9)
        below.set_ylabel(f"relative difference to\n{first.name}")
        below.set_xlabel(f"minibatch (differences below {_LEAST_SHOWN:g} are drawn there)")
        below.set_ylim(_LEAST_SHOWN / 2, 1e4 * ROUNDING)  # with room for the legend
        below.axhline(ROUNDING, color="black", linestyle="--", linewidth=0.8, label="the most that is allowed")
        below.legend(fontsize=9, loc="upper center", ncols=3, frameon=False)
        self._save(figure, "losses", "Every schedule trains alike: losses differ by the order of additions only.")

    def orders(self, losses: Mapping[str, Sequence[Sequence[float]]], changes: Mapping[str, Sequence[float]]) -> None:
        """The held-out loss of each order by window and seed, and its change at the end, by seed and in the mean."""
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.6), width_ratios=(3, 2))
        for place, (name, seeds) in enumerate(losses.items()):
            for number, values in enumerate(seeds):
                windows = range(1, len(values))
                label = name if number == 0 else None
                left.plot(windows, values[1:], color=f"C{place}", linewidth=0.9, alpha=0.8, label=label)
        for place, (_, ratios) in enumerate(changes.items()):
            right.plot([place] * len(ratios), [100 * ratio for ratio in ratios], "o", color="black", markersize=4)
            mean = 100 * sum(ratios) / len(ratios)
            error = 100 * stdev(ratios) / len(ratios) ** 0.5
            right.errorbar(place + 0.15, mean, error, fmt="s", color=f"C{place + 1}", capsize=5)
            right.text(place + 0.22, mean, f"{mean:+.2f} ± {error:.2f} %", va="center", fontsize=9)
        right.axhline(0, color="black", linewidth=0.8, linestyle="--")
        right.set_xticks(range(len(changes)), [name.replace(", ", ",\n") for name in changes])
        right.set_xlim(-0.4, len(changes))
        right.set_ylabel("change of the held-out loss at the end, %")
        left.set_xlabel("window of minibatches")
        left.set_ylabel("held-out loss, nats a token")
        left.legend(fontsize=9)
        self._save(figure, "orders", "The held-out loss by order of the samples: each seed, mean and standard error.")

    def write_page(self, tables: Iterable[str]) -> None:
        """index.html: the tables and the pictures so far."""
        shown = "".join(
            f'<h2>{escape(caption)}</h2>\n<img src="{name}" alt="{escape(caption)}">\n'
            for name, caption in self._captions.items()
        )
        title = escape(self._title)
        text = escape("\n".join(tables))
        (self._directory / "index.html").write_text(_PAGE.format(title=title, tables=text, pictures=shown))

    def _bar(self, colour: str) -> dict[str, Any]:
        """A gain that the verdict refuses is hollow and hatched."""
        return {"color": colour} if self._resolved else {"facecolor": "none", "edgecolor": colour, "hatch": "////"}

    def _write_gain(self, axes: Any, place: int, label: str, **font: Any) -> None:
        """Into its bar, beside the axis."""
        if not self._resolved:
            label, font = "not resolved", {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 2}}
        axes.annotate(label, (0, place), xytext=(8, 0), textcoords="offset points", va="center", **font)

    def _legend(self, axes: Any, columns: int = 3) -> None:
        axes.legend(fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=columns, frameon=False)

    def _save(self, figure: Any, name: str, caption: str) -> None:
        figure.suptitle(f"{self._title}\n{self._verdict}".strip(), fontsize=10)
        figure.tight_layout()
        figure.savefig(self._directory / f"{name}.png", dpi=110)
        pyplot.close(figure)
        self._captions[f"{name}.png"] = caption


_PAGE = """<!DOCTYPE html>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; max-width: 75rem; margin: 1rem auto; padding: 0 1rem }}
pre {{ overflow-x: auto; background: #f4f6f8; padding: 0.8rem }}
h1 {{ font-size: 1.4rem }}
h2 {{ font-size: 1rem; margin-top: 2rem }}
img {{ max-width: 100% }}
</style>
<h1>{title}</h1>
<pre>{tables}</pre>
{pictures}"""


def robust_top(values: Sequence[float]) -> float:
    """Where an axis ends: at the largest value, or above the largest that is no outlier, which are cut there."""
    if len(values) < _LEAST_QUANTILES:
        return max(values)
    lower, _, upper = quantiles(values, method="inclusive")
    regular = max(value for value in values if value <= upper + _FENCE * (upper - lower))
    return max(values) if regular == 0 else min(max(values), _CUT * regular)


def _write_cut(axes: Any, at: float, top: float, figures: Sequence[str]) -> None:
    """The figures of what is above the axis."""
    if figures:
        axes.plot(at, top * 1.02, "^", color="black", markersize=5, clip_on=False)
        axes.text(at, top * 1.04, ", ".join(figures), ha="center", va="bottom", fontsize=8)


def _typical(records: Records, minibatches: range) -> int:
    """The minibatch in which the last arm's gain over the first is the median, or next to it."""
    slow, *_, fast = records.values()
    gain = {number: _duration(slow, number) / _duration(fast, number) for number in minibatches}
    middle = median(gain.values())
    return min(gain, key=lambda number: abs(gain[number] - middle))


def _duration(record: ArmRecord, number: int) -> float:
    return max(steps[number].synced - steps[number].begin for steps in record.steps)


def _panel(record: ArmRecord, number: int) -> Panel:
    """Each rank from its own begin, just after it met all others: hosts' clocks differ."""
    steps = [one[number] for one in record.steps]
    end = max(step.end - step.begin for step in steps)
    ranks = [RankTrace(rank, "", 0, 0, _ns(end), [""], _events(step, number)) for rank, step in enumerate(steps)]
    return Panel(ranks, [idle_share([step], end) for step in steps])


def _events(step: Step, number: int) -> list[Event]:
    def event(call: str, name: str, begin: int, end: int) -> Event:
        return Event(call, name, number, 0, begin, end, 0, "")

    begin = step.begin
    spans = [(span.backward, _ns(span.begin - begin), _ns(span.end - begin)) for span in step.spans]
    made = [event("", "backward" if backward else "forward", *span) for backward, *span in spans]
    gaps = without([(0, _ns(step.synced - begin))], union((begin, end) for _, begin, end in spans))
    return made + [event("sync", "", *gap) for gap in gaps]


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
