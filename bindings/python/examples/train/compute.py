# SPDX-License-Identifier: Apache-2.0
"""Real compute, one rank per core or on GPUs: the separate gains of the transport, the schedule and the plan."""

from __future__ import annotations

from arms import COLLECTIVE, FSDP, ODC_MICRO, ODC_MINI
from experiment import Experiment, Records, check_losses
from figures import ArmFigures, Gain, arm_figures, gain, largest, loss_differences, loss_sentence, table
from gpus import gpu_words
from load import circumstances, verdict
from session import Session
from trainer import Trainer
from workload import Workload

_TITLE = "Real compute"


def run(session: Session) -> None:
    options, size = session.options, session.context.size
    workload = session.workload()
    timed = range(1, 1 + options.rounds * options.turn)  # the first minibatch warms up
    workload.add_minibatches(timed.stop, size, options.minibatch, options.seed)
    on_gpu = session.mesh.device_type == "cuda"
    where = f"on GPUs ({gpu_words(size)})" if on_gpu else "of one thread"
    session.say(
        [
            f"real compute: {size} ranks {where}, {options.minibatch} samples a rank and minibatch",
            f"each arm trains the same {len(timed)} minibatches, {options.turn} a turn, after one to warm up; "
            f"seed {options.seed}",
            *session.dataset.lines(options),
        ]
    )
    # gloo's collectives would leave GPUs idle: on GPUs FSDP2 is compared over NCCL or not at all.
    compared = [FSDP] if not on_gpu or options.compare else []
    arms = [*compared, COLLECTIVE, ODC_MICRO, ODC_MINI]
    trainers = [Trainer(arm, session.recipe, workload, session.mesh) for arm in arms]
    experiment = Experiment(session.context, trainers, workload)
    held_out = session.held_out()
    experiment.evaluate(held_out)
    experiment.run(0, 1, turn=0)
    for turn in range(options.rounds):
        experiment.run(timed.start + turn * options.turn, options.turn, turn=turn)
    experiment.evaluate(held_out)
    experiment.gather()
    if session.context.rank == 0:
        _report(session, experiment, workload, timed)
    for trainer in trainers:
        trainer.close()
    check_losses(experiment.records)


def _report(session: Session, experiment: Experiment, workload: Workload, timed: range) -> None:
    records = experiment.records
    figures = [arm_figures(arm, record, workload, timed) for arm, record in records.items()]
    gains = [
        gain(of, under, over, records, workload, timed)
        for of, under, over in (
            ("transport", FSDP, COLLECTIVE),
            ("schedule", COLLECTIVE, ODC_MICRO),
            ("both", FSDP, ODC_MICRO),
            ("plan", ODC_MICRO, ODC_MINI),
            ("all", FSDP, ODC_MINI),
        )
        if under in records
    ]
    differences = loss_differences(records, next(iter(records)))
    best = gains[-1]
    spread = f"{best.median:.2f}x ({min(best.ratios):.2f}x to {max(best.ratios):.2f}x in {len(best.ratios)} pairs)"
    result = verdict(f"{best.over.name} over {best.under.name}: {spread}", experiment.others)
    print("", *_tables(figures, gains, records), loss_sentence(differences), "", result, sep="\n")
    session.write_summary(
        {
            "experiment": _TITLE,
            "verdict": result,
            **circumstances(experiment.others),
            "arms": [figure.summary(records[figure.arm]) for figure in figures],
            "gains": [gain.summary() for gain in gains],
            "largest_loss_difference": largest(differences),
        }
    )
    import pictures

    ranks = f"{_TITLE}, {session.context.size} ranks"
    directory = session.options.report
    pictures.draw_gains(directory / "gains.png", f"{ranks}: the gain of each step", gains)
    idle = {figure.arm: figure.rank_idle for figure in figures if figure.rank_idle}
    if idle:
        pictures.draw_idle(directory / "idle.png", f"{ranks}: idle", idle)
    losses = {arm: record.losses() for arm, record in records.items()}
    pictures.draw_losses(directory / "losses.png", f"{ranks}: losses", losses, differences)


def _tables(figures: list[ArmFigures], gains: list[Gain], records: Records) -> list[str]:
    first = figures[0]
    arms = [
        (
            figure.arm.name,
            f"{figure.tokens_per_second:.0f}",
            f"{first.seconds / figure.seconds:.2f}x",
            f"{first.ideal_cost / figure.ideal_cost:.2f}x",
            f"{figure.idle:.1%}" if figure.rank_idle else "-",
            f"{records[figure.arm].losses()[-1]:.6f}",
            "{:.4f} -> {:.4f}".format(*records[figure.arm].held_out),
        )
        for figure in figures
    ]
    steps = [
        (
            f"{gain.of}: {gain.over.name} over {gain.under.name}",
            f"{gain.median:.3f}x",
            f"{min(gain.ratios):.3f} to {max(gain.ratios):.3f}",
            f"{gain.ideal:.3f}x",
        )
        for gain in gains
    ]
    return [
        *table(("arm", "tokens/s", "speedup", "ideal", "idle", "last loss", "held-out loss"), arms),
        "",
        *table((f"gain of (median of {len(gains[0].ratios)} pairs)", "reached", "spread", "ideal"), steps),
        "",
        "ideal: by the 7b cost model with free communication (of a gain: the median, too); idle: not on a core, be it",
        "for waiting or because another program is; mean over ranks; of GPUs it is not known",
    ]
