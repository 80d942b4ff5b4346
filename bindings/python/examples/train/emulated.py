# SPDX-License-Identifier: Apache-2.0
"""Emulated devices: real training with compute padded to the time of a 7B model's, collective schedule against ODC."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from arms import COLLECTIVE, ODC_MINI, Arm
from emulation import WARNING, Device, Slot
from experiment import ArmRecord, Experiment, ExperimentError, Records, check_losses
from figures import ArmFigures, arm_figures, ideal_cost, largest, loss_differences, loss_sentence, table
from load import circumstances, verdict
from session import Session
from trainer import EmulatedTrainer
from workload import Workload

_ARMS = (COLLECTIVE, ODC_MINI)
_MOST_OVERRUN = 0.01
_NOTES = (
    "ideal: communication takes no time and the optimizer is left out. More than all of an ideal speedup comes of",
    "ranks that share cores: they wait for each other's Python, too, in the collective schedule in each block",
)


@dataclass(frozen=True)
class Part:
    """Minibatches with `per_rank` samples per rank, and the share of the ideal speedup that ODC should reach."""

    per_rank: int
    minibatches: range
    bar: float


@dataclass(frozen=True)
class Overruns:
    """The number of slots that real compute exceeded."""

    slots: int
    longer: int

    @property
    def share(self) -> float:
        return self.longer / self.slots

    def __str__(self) -> str:
        return (
            f"real compute was longer than {self.longer} of {self.slots} slots, {self.share:.2%} (at most "
            f"{_MOST_OVERRUN:.0%})"
        )


def run(session: Session) -> None:
    options, size = session.options, session.context.size
    workload = session.workload()
    count = options.minibatches
    workload.add_minibatches(1 + count, size, options.minibatch, options.seed)  # the first is a warm-up
    workload.add_minibatches(count, size, 1, options.seed)
    parts = [
        Part(options.minibatch, range(1, 1 + count), 0.95),
        Part(1, range(1 + count, 1 + 2 * count), 0.98),
    ]
    total = sum(ideal_cost(arm, workload, part.minibatches) for arm in _ARMS for part in parts)
    seconds_per_cost = options.seconds / total
    session.say(
        [
            WARNING,
            f"{size} ranks; blocks take the time of the 7b cost model, 1 of its cost is {seconds_per_cost:.3f} s; "
            f"{count} minibatches each with {options.minibatch} and with 1 samples a rank; seed {options.seed}",
            *session.dataset.lines(options),
        ]
    )
    devices = [Device(options.blocks, 0.0) for _ in _ARMS]
    trainers = [
        EmulatedTrainer(arm, session.recipe, workload, session.mesh, device)
        for arm, device in zip(_ARMS, devices, strict=True)
    ]
    experiment = Experiment(session.context, trainers, workload)
    held_out = session.held_out()
    experiment.evaluate(held_out)
    experiment.run(0, 1, turn=0)
    for device in devices:
        device.seconds_per_cost = seconds_per_cost
    for part in parts:
        for number in part.minibatches:
            experiment.run(number, 1, turn=number)
    experiment.evaluate(held_out)
    experiment.gather()
    shares = [0.0] * len(parts)
    if session.context.rank == 0:
        overruns = [_overruns(experiment.records, part) for part in parts]
        _report(session, experiment, workload, parts, overruns, seconds_per_cost)
        shares = [overrun.share for overrun in overruns]
    shares = session.context.sync(shares)
    for trainer in trainers:
        trainer.close()
    check_losses(experiment.records)
    for part, share in zip(parts, shares, strict=True):
        if share > _MOST_OVERRUN:
            raise ExperimentError(
                f"with {part.per_rank} samples a rank real compute was longer than {share:.2%} of the slots, more than "
                f"{_MOST_OVERRUN:.0%}: raise --seconds, leave out short --lengths, or run on a quieter machine"
            )


def _overruns(records: Records, part: Part) -> Overruns:
    ranks = [own for record in records.values() for own in record.slots]
    slots = [slot for own in ranks for number in part.minibatches for slot in own[number]]
    return Overruns(len(slots), sum(slot.excess > 0 for slot in slots))


def _report(
    session: Session,
    experiment: Experiment,
    workload: Workload,
    parts: list[Part],
    overruns: list[Overruns],
    seconds_per_cost: float,
) -> None:
    records, results = experiment.records, []
    for part, overrun in zip(parts, overruns, strict=True):
        figures = [arm_figures(arm, records[arm], workload, part.minibatches) for arm in _ARMS]
        reached = figures[0].seconds / figures[1].seconds
        ideal = figures[0].ideal_cost / figures[1].ideal_cost
        print("", *_table(part, figures, records, seconds_per_cost, reached / ideal), sep="\n")
        print(overrun)
        results.append(
            {
                "samples_per_rank": part.per_rank,
                "arms": [figure.summary(records[figure.arm]) for figure in figures],
                "share_of_own_ideal": [one.ideal_cost * seconds_per_cost / one.seconds for one in figures],
                "speedup": reached,
                "ideal_speedup": ideal,
                "bar": part.bar,
                "overruns": asdict(overrun),
            }
        )
    differences = loss_differences(records, COLLECTIVE)
    gains = [f"{one['speedup']:.2f}x with {one['samples_per_rank']} samples a rank" for one in results]
    result = verdict(f"{ODC_MINI.name} over {COLLECTIVE.name}: {', '.join(gains)}", experiment.others)
    print("", *_NOTES, loss_sentence(differences), "", result, sep="\n")
    session.write_summary(
        {
            "experiment": WARNING,
            "verdict": result,
            **circumstances(experiment.others),
            "parts": results,
            "largest_loss_difference": largest(differences),
        }
    )
    _draw(session, records, workload, parts[0], differences)


def _table(part: Part, figures: list[ArmFigures], records: Records, seconds_per_cost: float, share: float) -> list[str]:
    first = figures[0]
    rows = [
        (
            figure.arm.name,
            f"{figure.samples_per_second:.2f}",
            f"{first.seconds / figure.seconds:.2f}x",
            f"{first.ideal_cost / figure.ideal_cost:.2f}x",
            f"{figure.ideal_cost * seconds_per_cost / figure.seconds:.1%}",
            f"{figure.idle:.1%}",
            f"{records[figure.arm].losses()[part.minibatches[-1]]:.6f}",
            "{:.4f} -> {:.4f}".format(*records[figure.arm].held_out),
        )
        for figure in figures
    ]
    samples = f"{part.per_rank} sample{'s' if part.per_rank > 1 else ''} a rank"
    header = (samples, "samples/s", "speedup", "ideal", "of own ideal", "idle", "last loss", "held-out loss")
    return [*table(header, rows), f"speedup reached: {share:.1%} of the ideal one (bar: {part.bar:.0%})"]


def _draw(
    session: Session, records: Records, workload: Workload, part: Part, differences: dict[Arm, list[float]]
) -> None:
    import pictures

    directory = session.options.report
    number = part.minibatches[0]
    schedules = {arm: _pictured(record, number) for arm, record in records.items()}
    pictures.draw_timeline(directory / "timeline.png", f"{WARNING}\nOne minibatch in both schedules", schedules)
    idle = {arm: arm_figures(arm, record, workload, part.minibatches).rank_idle for arm, record in records.items()}
    pictures.draw_idle(directory / "idle.png", f"{WARNING}\nIdle time of each rank", idle)
    losses = {arm: record.losses() for arm, record in records.items()}
    pictures.draw_losses(directory / "losses.png", f"{WARNING}\nReal losses", losses, differences)


def _pictured(record: ArmRecord, number: int) -> tuple[float, list[list[Slot]]]:
    """A minibatch's end and its slots by rank, in seconds since the first rank began it."""
    begin = min(steps[number].begin for steps in record.steps)
    end = max(steps[number].end for steps in record.steps) - begin
    shifted = [
        [Slot(slot.backward, slot.begin - begin, slot.end - begin, slot.excess) for slot in slots[number]]
        for slots in record.slots
    ]
    return end, shifted
