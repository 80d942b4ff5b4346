# SPDX-License-Identifier: Apache-2.0
"""Emulated devices: real training with compute padded to the time of a 7B model's; the separate gains of the schedule
and the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from arms import COLLECTIVE, COLLECTIVE_ROWS, ODC_MICRO, ODC_MINI
from emulation import WARNING, Device, Overruns, overruns
from experiment import Experiment, Records, check_losses, ideal_cost
from figures import (
    NOTES,
    Gain,
    arm_figures,
    arms_table,
    gains_table,
    largest,
    loss_differences,
    loss_sentence,
    ranks_of,
    step_gains,
)
from load import circumstances, disturbed_line, verdict
from session import Session
from trainer import EmulatedTrainer
from workload import Workload

_ARMS = (COLLECTIVE, COLLECTIVE_ROWS, ODC_MICRO, ODC_MINI)
_TITLE = "Emulated devices, not a GPU measurement"


@dataclass(frozen=True)
class Part:
    """Minibatches with `per_rank` samples per rank."""

    per_rank: int
    minibatches: range

    def __str__(self) -> str:
        return f"{self.per_rank} sample{'s' if self.per_rank > 1 else ''} a rank"


def run(session: Session) -> None:
    options, size = session.options, session.context.size
    workload = session.workload(_ARMS)
    count = options.minibatches
    workload.add_minibatches(1 + count, size, options.minibatch, options.seed)  # the first is a warm-up
    workload.add_minibatches(count, size, 1, options.seed)
    parts = [
        Part(options.minibatch, range(1, 1 + count)),
        Part(1, range(1 + count, 1 + 2 * count)),
    ]
    total = sum(ideal_cost(arm, workload, part.minibatches) for arm in _ARMS for part in parts)
    seconds_per_cost = options.seconds / total
    session.print_lines(
        [
            WARNING,
            f"{ranks_of(size)}; blocks take the time of the 7b cost model, 1 of its cost is {seconds_per_cost:.3f} s; "
            f"{count} minibatches each with {options.minibatch} and with 1 samples a rank; seed {options.seed}",
            *session.dataset.lines(options),
        ]
    )
    devices = [Device(options.blocks, 0.0) for _ in _ARMS]
    trainers = [
        EmulatedTrainer(arm, session.recipe, workload, session.mesh, device)
        for arm, device in zip(_ARMS, devices, strict=True)
    ]
    experiment = Experiment(session.context, trainers, workload, session.hosts)
    held_out = session.held_out()
    experiment.evaluate(held_out)
    experiment.run(0, 1, turn=0)
    for device in devices:
        device.seconds_per_cost = seconds_per_cost
    for part in parts:
        for number in part.minibatches:
            experiment.run(number, 1, turn=number)
    experiment.repeat_disturbed()
    experiment.evaluate(held_out)
    experiment.gather()
    if session.context.rank == 0:
        _report(session, experiment, workload, parts, [_overruns(experiment.records, part) for part in parts])
    for trainer in trainers:
        trainer.close()
    check_losses(experiment.records)


def _overruns(records: Records, part: Part) -> Overruns:
    ranks = [steps for record in records.values() for steps in record.steps]
    return overruns(span for steps in ranks for number in part.minibatches for span in steps[number].spans)


def _report(
    session: Session, experiment: Experiment, workload: Workload, parts: list[Part], overruns: list[Overruns]
) -> None:
    records, results, tables = experiment.records, [], []
    gains = [step_gains(records, part.minibatches) for part in parts]
    result = _verdict(parts, gains, overruns, experiment.others)
    for part, part_gains, overrun in zip(parts, gains, overruns, strict=True):
        figures = [arm_figures(arm, records[arm], workload, part.minibatches) for arm in _ARMS]
        tables += arms_table(str(part), figures, records, part.minibatches[-1], result)
        tables += [*gains_table(part_gains, result), str(overrun), ""]
        results.append(
            {
                "samples_per_rank": part.per_rank,
                "arms": [figure.summary(records[figure.arm]) for figure in figures],
                "gains": [gain.summary(result) for gain in part_gains],
                "overruns": asdict(overrun),
            }
        )
    differences = loss_differences(records, COLLECTIVE)
    disturbed = disturbed_line(experiment.others, experiment.repeated)
    tables = [result, *disturbed, "", *tables, *NOTES, loss_sentence(differences)]
    print("", *tables, sep="\n")
    session.write_summary(
        {
            "experiment": WARNING,
            "verdict": result,
            **circumstances(experiment.others, experiment.repeated),
            "parts": results,
            "largest_loss_difference": largest(differences),
        }
    )
    most = parts[0]
    from pictures import Pictures  # imports Matplotlib, on one rank only

    pictures = Pictures(session.options.report, f"{_TITLE}: {ranks_of(session.context.size)}, {most}", result)
    pictures.gains(gains[0])
    pictures.timeline(records, most.minibatches, idle="not in an emulated block")
    pictures.idle([arm_figures(arm, record, workload, most.minibatches) for arm, record in records.items()])
    pictures.losses(records, differences)
    pictures.write_page([WARNING, "", *tables])


def _verdict(
    parts: Sequence[Part], gains: Sequence[Sequence[Gain]], overruns: Sequence[Overruns], others: float | None
) -> str:
    reached, doubts = [], []
    for part, part_gains, overrun in zip(parts, gains, overruns, strict=True):
        against = {gain.under: str(gain) for gain in part_gains if gain.over is ODC_MINI}
        reached.append(f"{against[COLLECTIVE]} and {against[COLLECTIVE_ROWS]} with {part}")
        if doubt := overrun.doubt("raise --seconds, leave out short --lengths"):
            doubts.append(f"with {part} {doubt}")
    over = f"{ODC_MINI.name} over {COLLECTIVE.name} and over {COLLECTIVE_ROWS.name}"
    return verdict(f"{over}: {', '.join(reached)}", others, len(gains[0][0].ratios), *doubts)
