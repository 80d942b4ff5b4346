# SPDX-License-Identifier: Apache-2.0
"""The results of the arms: table, verdict, summary.json and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

import torch
from emulation import WARNING
from figures import ranks_of, table
from learner import PHASES
from load import LEAST_PAIRS, circumstances, resolution, resolved, verdict
from outcome import Outcome, alike, difference
from settings import Settings
from update import NOTES, Update, sentence, together, update_of, update_table
from ways import ARMS


def report(settings: Settings, ranks: int, outcomes: Mapping[str, Outcome], others: float | None) -> None:
    """`others`: the share of the processors that other programs took."""
    updates = {
        name: update_of(one.records, in_step=ARMS[name].in_step)
        for name, one in outcomes.items()
        if settings.emulate > 0
    }
    result, update_verdict = _verdict(outcomes), ""
    times = verdict("", others, LEAST_PAIRS)
    if updates:
        overruns = together(updates)
        doubt = overruns.doubt("raise --emulate")
        update_verdict = verdict(sentence(updates), others, settings.rollouts - 1, *([doubt] if doubt else []))
        result = f"{update_verdict}; {result}"
    elif not resolved(times):
        result += f"; times {times.removeprefix('verdict: ')}"
    shown = result if updates else f"verdict: {result}"
    lines = [
        shown,
        *([WARNING] if updates else []),
        f"GRPO on sorting digits: {ranks_of(ranks)} of one thread, {settings.rollouts} rollouts of {settings.prompts} "
        f"prompts with {settings.answers} answers each, {settings.minibatch} groups a minibatch, seed {settings.seed}"
        + (f", devices' speeds differ by up to {settings.noise:.0%}" if settings.noise > 0 else ""),
        "",
        *_tables(outcomes, updates),
        "",
        *_notes(outcomes),
        "",
        *([*update_table(updates, result), "", *NOTES, str(overruns)] if updates else []),
    ]
    print("\n".join(lines), flush=True)
    summary = {
        "settings": {**asdict(settings), "report": str(settings.report)},
        "ranks": ranks,
        "torch": torch.__version__,
        "verdict": result,
        "times": resolution(times),
        **circumstances(others, 0),
        "arms": {
            name: one.summary() | ({"update": updates[name].summary(update_verdict)} if name in updates else {})
            for name, one in outcomes.items()
        },
    }
    (settings.report / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    from charts import draw  # imports Matplotlib, on one rank only

    draw(settings, ranks, outcomes, updates, lines, shown)


def _tables(outcomes: Mapping[str, Outcome], updates: Mapping[str, Update]) -> list[str]:
    header = ("seconds", *PHASES, "end to end", "idle", "waited: parameters", "answers", "reference")
    times = [
        (
            name,
            *(f"{one:.2f}" for one in outcome.phase_seconds),
            f"{outcome.seconds:.2f}",
            "-" if name in updates else f"{outcome.idle:.1%}",  # sleeping for a device is not being idle
            *(
                "-" if what == "reference" and ARMS[name].in_step else f"{seconds:.2f}"
                for what, seconds in outcome.waited().items()
            ),
        )
        for name, outcome in outcomes.items()
    ]
    counts = [
        (
            name,
            "{:.3f} -> {:.3f}".format(*outcome.held_out),
            f"{outcome.total('kept'):.0f} of {outcome.total('groups'):.0f}",
            "{} to {}".format(*outcome.trained()),
            f"{outcome.total('padding'):.0f}",
            f"{outcome.steps}",
            f"{outcome.lock_steps}",
            outcome.digest,
        )
        for name, outcome in outcomes.items()
    ]
    titles = (
        "arm",
        "held-out reward",
        "groups with signal",
        "answers a rank",
        "passes over nothing",
        "rollout steps",
        "in lock step",
        "parameters",
    )
    return [*table(titles, counts), "", *table(header, times)]


def _notes(outcomes: Mapping[str, Outcome]) -> list[str]:
    return [
        "held-out reward: before and after, mean over answers; answers a rank: the fewest and the most that one",
        "trained on in a rollout; passes over nothing: on all ranks, so that collectives match; rollout steps: on all",
        "ranks, one for each token of a group's longest answer; in lock step: computed, what they would be at least if",
        "parameters were gathered by collectives in each step, as all ranks step until the longest answer of any",
        "seconds: of all rollouts, mean over ranks; the exchange includes the wait for all ranks' answers; waited: for",
        "parameters as a rollout begins, for other ranks' answers after it, for the reference's parameters; of",
        "collectives, whose waits are not known apart, all seconds outside of passes",
        *_same_rewards(outcomes),
    ]


def _same_rewards(outcomes: Mapping[str, Outcome]) -> list[str]:
    ours = alike(outcomes)
    if "fsdp2-equal" not in outcomes or not ours:
        return []
    plain, other = outcomes["fsdp2-equal"], next(iter(ours.values()))
    same = [a == b for a, b in zip(plain.rewards, other.rewards, strict=True)]
    count = same.index(False) if False in same else len(same)
    return [
        f"fsdp2-equal has the ODC arms' rewards in the first {count} of {len(same)} rollouts: it rounds otherwise, and",
        "one token drawn otherwise changes all that follows",
    ]


def _verdict(outcomes: Mapping[str, Outcome]) -> str:
    ours = list(alike(outcomes))
    name, last = list(outcomes.items())[-1]
    result = "reward of held-out prompts {:.3f} -> {:.3f}".format(*last.held_out) + f" ({name})"
    if (found := difference(outcomes)) is not None:
        return f"{result}; {found}"
    return result + (f"; the same rewards and parameters, bit by bit, in {', '.join(ours)}" if len(ours) > 1 else "")
