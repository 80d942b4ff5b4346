# SPDX-License-Identifier: Apache-2.0
"""The pictures of a report (PNG, by Matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from arms import Arm
from emulation import Slot
from experiment import ROUNDING
from figures import Gain

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Patch

_FORWARD, _BACKWARD, _WAITING = "#7fb3d5", "#1f618d", "#f2d7d5"
_ARM_COLOURS = ("#7f8c8d", "#c0392b", "#d68910", "#1e8449")
_LEAST_SHOWN = 1e-10  # differences below are drawn there, as a log axis has no zero


def _save(figure: Any, path: Path, title: str) -> None:
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_timeline(path: Path, title: str, schedules: Mapping[Arm, tuple[float, Sequence[Sequence[Slot]]]]) -> None:
    """For each schedule the end of a minibatch, and each rank's slots in it, in seconds since it began."""
    figure, panels = pyplot.subplots(len(schedules), 1, sharex=True, figsize=(11, 6.2), squeeze=False)
    longest = max(end for end, _ in schedules.values())
    for axes, (arm, (end, ranks)) in zip(panels[:, 0], schedules.items(), strict=True):
        for rank, slots in enumerate(ranks):
            axes.barh(rank, end, 0.8, color=_WAITING)
            for backward, colour in ((False, _FORWARD), (True, _BACKWARD)):
                spans = [(slot.begin, slot.end - slot.begin) for slot in slots if slot.backward is backward]
                axes.broken_barh(spans, (rank - 0.4, 0.8), facecolors=colour, edgecolor="white", linewidth=0.3)
        axes.axvline(end, color="black", linewidth=1.2)
        axes.annotate(f"{end:.2f} s", (end, -0.4), xytext=(4, 0), textcoords="offset points", va="top")
        axes.set_xlim(0, longest * 1.08)
        axes.set_yticks(range(len(ranks)))
        axes.invert_yaxis()
        axes.set_ylabel("rank")
        axes.set_title(arm.name, loc="left", fontsize=10)
    panels[-1, 0].set_xlabel("seconds since the minibatch began")
    handles = [Patch(color=colour) for colour in (_FORWARD, _BACKWARD, _WAITING)]
    panels[0, 0].legend(handles, ["forward", "backward", "idle"], ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    _save(figure, path, title)


def draw_idle(path: Path, title: str, idle: Mapping[Arm, Sequence[float]]) -> None:
    """For each arm, the share of the time that each rank was idle."""
    figure, axes = pyplot.subplots(figsize=(9, 4.2))
    width = 0.8 / len(idle)
    for place, (arm, shares) in enumerate(idle.items()):
        at = [rank - 0.4 + width * (place + 0.5) for rank in range(len(shares))]
        mean = sum(shares) / len(shares)
        heights = [100 * share for share in shares]
        bars = axes.bar(at, heights, width, color=_colour(place, idle), label=f"{arm.name}: mean {mean:.1%}")
        axes.bar_label(bars, fmt="%.0f", fontsize=8, padding=1)
    axes.set_xticks(range(len(next(iter(idle.values())))))
    axes.set_xlabel("rank")
    axes.set_ylabel("idle, % of the time")
    axes.margins(y=0.12)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False, fontsize=9)
    _save(figure, path, title)


def draw_losses(
    path: Path, title: str, losses: Mapping[Arm, Sequence[float]], differences: Mapping[Arm, Sequence[float]]
) -> None:
    """Each arm's loss by minibatch, and below its relative difference to the first arm's, on a log axis."""
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6.2))
    for place, (arm, values) in enumerate(losses.items()):
        # Equal curves overlap: later ones are thinner.
        above.plot(values, color=_colour(place, losses), linewidth=2 + 2 * (len(losses) - 1 - place), label=arm.name)
        if arm in differences:
            shown = [max(value, _LEAST_SHOWN) for value in differences[arm]]
            below.semilogy(shown, "o-", color=_colour(place, losses), markersize=3, linewidth=1, label=arm.name)
    above.set_ylabel("training loss, nats a token")
    above.legend(fontsize=9)
    below.set_ylabel(f"relative difference to\n{next(iter(losses)).name}")
    below.set_xlabel(f"minibatch (differences below {_LEAST_SHOWN:g} are drawn there)")
    below.set_ylim(_LEAST_SHOWN / 2, 10 * ROUNDING)
    below.axhline(ROUNDING, color="black", linestyle="--", linewidth=0.8)
    below.annotate("allowed", (0, ROUNDING), xytext=(0, 3), textcoords="offset points", fontsize=8)
    below.legend(fontsize=9, loc="upper right", ncols=len(differences))
    _save(figure, path, title)


def draw_gains(path: Path, title: str, gains: Sequence[Gain]) -> None:
    """Each gain's ratios, their median, and the ideal."""
    figure, axes = pyplot.subplots(figsize=(9, 4.2))
    places = range(len(gains))
    axes.bar(places, [gain.median for gain in gains], 0.5, color=_FORWARD, label="median")
    for place, gain in enumerate(gains):
        axes.plot([place] * len(gain.ratios), gain.ratios, "o", color="black", markersize=4)
        axes.annotate(f"{gain.median:.2f}x", (place, 0), xytext=(0, 6), textcoords="offset points", ha="center")
    axes.plot([], "o", color="black", markersize=4, label="one pair")
    left, right = [place - 0.3 for place in places], [place + 0.3 for place in places]
    axes.hlines([gain.ideal for gain in gains], left, right, color="#c0392b", label="ideal, communication free")
    axes.set_xticks(places, [f"{gain.of}\n{gain.over.name}\nover {gain.under.name}" for gain in gains], fontsize=8)
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_ylabel("times as fast")
    axes.legend(fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    _save(figure, path, title)


def _colour(place: int, arms: Mapping[Arm, Any]) -> str:
    """Two arms are the collective schedule and ODC; four are all."""
    return _ARM_COLOURS[place if len(arms) > 2 else 1 + 2 * place]
