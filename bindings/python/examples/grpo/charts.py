# SPDX-License-Identifier: Apache-2.0
"""The pictures of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from learner import PHASES, Record
from outcome import Outcome
from pictures import Pictures, pyplot
from settings import Settings
from update import Update
from ways import SAME_BITS

from libodc.tracing.recorder import Event, RankTrace
from libodc.tracing.timeline import Panel, draw_schedules, idle_share

_COLOURS = ("#2f5f9e", "#6f9fd8", "#f7c9a9", "#16324f")  # of the phases


class Charts(Pictures):
    def rewards(self, outcomes: Mapping[str, Outcome]) -> None:
        figure, axes = pyplot.subplots(figsize=(10, 4.2))
        for place, (name, outcome) in enumerate(outcomes.items()):
            # Equal curves overlap: later ones are thinner.
            label = "{}: held out {:.2f} to {:.2f}".format(name, *outcome.held_out)
            axes.plot(outcome.rewards, linewidth=2 + 2 * (len(outcomes) - 1 - place), label=label)
        axes.set_xlabel("rollout")
        axes.set_ylabel("reward, mean over answers")
        axes.set_ylim(bottom=0)
        self._legend(axes, columns=2)
        same = [name for name in outcomes if name in SAME_BITS]
        caption = f": the same bits in {', '.join(same)}" if len(same) > 1 else ""
        self._save(figure, "rewards", f"The reward by rollout{caption}.")

    def phases(self, outcomes: Mapping[str, Outcome]) -> None:
        figure, axes = pyplot.subplots(figsize=(10, 1.6 + 0.5 * len(outcomes)))
        for place, outcome in enumerate(outcomes.values()):
            left = 0.0
            for phase, seconds in enumerate(outcome.phase_seconds):
                label = PHASES[phase] if place == 0 else None
                axes.barh(place, seconds, 0.6, left, color=_COLOURS[phase], label=label)
                left += seconds
        axes.set_yticks(range(len(outcomes)), list(outcomes))
        axes.invert_yaxis()
        axes.set_xlabel("seconds of all rollouts, mean over ranks")
        self._legend(axes, columns=4)
        self._save(figure, "phases", "Where the time goes; the exchange includes the wait for all ranks' answers.")

    def updates(self, updates: Mapping[str, Update]) -> None:
        """Seconds, and what of them is the ideal."""
        figure, axes = pyplot.subplots(figsize=(10, 1.6 + 0.5 * len(updates)))
        for place, one in enumerate(updates.values()):
            names = ("ideal", "beyond it") if place == 0 else (None, None)
            beyond = one.seconds - one.ideal_seconds
            axes.barh(place, one.ideal_seconds, 0.6, **self._bar(_COLOURS[1]), label=names[0])
            axes.barh(place, beyond, 0.6, one.ideal_seconds, **self._bar(_COLOURS[2]), label=names[1])
            label = f"{one.reached:.1%} reached, {1 - one.busy:.0%} idle"
            self._write_gain(axes, place, label)
        axes.set_yticks(range(len(updates)), list(updates))
        axes.invert_yaxis()
        axes.set_xlabel("seconds of the update, all rollouts but the first")
        self._legend(axes, columns=2)
        self._save(figure, "updates", "The update on emulated devices, and each arm's own ideal.")

    def rollout(self, outcomes: Mapping[str, Outcome]) -> None:
        """Of the rollout whose length in the last arm is the median."""
        *_, last = outcomes.values()
        lengths = {number: record.marks[-1] - record.marks[0] for number, record in enumerate(last.records[0])}
        middle = median(lengths.values())
        number = min(lengths, key=lambda one: abs(lengths[one] - middle))
        panels = {}
        for name, outcome in outcomes.items():
            ranks = [_trace(rank, records[number]) for rank, records in enumerate(outcome.records)]
            panels[name] = Panel(ranks, [idle_share(one) for one in ranks])
        name = "timeline.png"
        draw_schedules(
            self._directory / name,
            f"{self._title}, rollout {number}",
            panels,
            "each from its own begin; idle: outside of spans, or waiting",
            waiting="exchange and sync: waiting, moving answers",
            rest="gathers for the rollout, optimizer",
            verdict=self._verdict,
        )
        self._captions[name] = "One rollout in every arm. With real compute collectives' waits are inside the spans."


def _trace(rank: int, record: Record) -> RankTrace:
    """From the rank's own begin: hosts' clocks differ."""
    begin, *_, end = record.marks

    def event(call: str, name: str, first: float, last: float) -> Event:
        return Event(call, name, 0, 0, _ns(first - begin), _ns(last - begin), 0, "")

    events = [event("", *span) for span in record.spans] + [event("sync", "", *wait) for wait in record.waits]
    return RankTrace(rank, "", 0, 0, _ns(end - begin), [""], events)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def draw(
    settings: Settings,
    ranks: int,
    outcomes: Mapping[str, Outcome],
    updates: Mapping[str, Update],
    tables: Sequence[str],
    verdict: str,
) -> None:
    """`updates`: on emulated devices; empty: there are none."""
    charts = Charts(settings.report, f"GRPO on sorting digits, {ranks} rank{'s' if ranks > 1 else ''}", verdict)
    charts.rewards(outcomes)
    charts.phases(outcomes)
    if updates:
        charts.updates(updates)
    charts.rollout(outcomes)
    charts.write_page(tables)
