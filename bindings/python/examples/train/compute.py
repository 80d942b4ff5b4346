# SPDX-License-Identifier: Apache-2.0
"""Real compute, one rank per core or on GPUs: the separate gains of the transport, the schedule and the plan."""

from __future__ import annotations

from arms import COLLECTIVE, COLLECTIVE_ROWS, FSDP, ODC_CLAIMS, ODC_FLAT, ODC_MICRO, ODC_MINI
from experiment import Experiment, check_losses
from figures import (
    NOTES,
    arm_figures,
    arms_table,
    bytes_table,
    gains_table,
    largest,
    loss_differences,
    loss_sentence,
    ranks_of,
    step_gains,
)
from gpus import gpu_text
from load import circumstances, disturbed_line, verdict
from neighbour import busy_neighbour
from session import Session
from trainer import ClaimingTrainer, Trainer
from workload import Workload

_TITLE = "Real compute"


def run(session: Session) -> None:
    options, size = session.options, session.context.size
    on_gpu = session.mesh.device_type == "cuda"
    # gloo's collectives would leave GPUs idle: on GPUs FSDP2 is compared over NCCL or not at all.
    compared = [FSDP] if not on_gpu or options.compare else []
    flat = [ODC_FLAT] if 1 < session.hosts < size else []
    arms = [*compared, COLLECTIVE, COLLECTIVE_ROWS, ODC_MICRO, *flat, ODC_MINI]
    workload = session.workload(arms)
    timed = range(1, 1 + options.rounds * options.turn)  # the first minibatch warms up
    workload.add_minibatches(timed.stop, size, options.minibatch, options.seed)
    where = f"on GPUs ({gpu_text(size)})" if on_gpu else "of one thread"
    session.print_lines(
        [
            f"real compute: {ranks_of(size)} {where}, {options.minibatch} samples a rank and minibatch",
            f"each arm trains the same {len(timed)} minibatches, {options.turn} a turn, after one to warm up; "
            f"seed {options.seed}",
            *_slow_lines(options.slow),
            *session.dataset.lines(options),
        ]
    )
    trainers = [Trainer(arm, session.recipe, workload, session.mesh) for arm in arms]
    if options.slow is not None:
        trainers.append(ClaimingTrainer(ODC_CLAIMS, session.recipe, workload, session.mesh))
    experiment = Experiment(session.context, trainers, workload, session.hosts)
    held_out = session.held_out()
    experiment.evaluate(held_out)
    with busy_neighbour(options.slow, session.context.rank) as experiment.neighbour_seconds:
        experiment.run(0, 1, turn=0)
        for turn in range(options.rounds):
            experiment.run(timed.start + turn * options.turn, options.turn, turn=turn)
        if options.slow is None:  # speeds that claims measure in one minibatch serve the next
            experiment.repeat_disturbed()
    experiment.evaluate(held_out)
    experiment.gather()
    if session.context.rank == 0:
        _report(session, experiment, workload, timed)
    for trainer in trainers:
        trainer.close()
    check_losses(experiment.records)


def _slow_lines(slow: int | None) -> list[str]:
    if slow is None:
        return []
    return [
        f"rank {slow} shares its core with a busy process, which halves its speed; `ideal` is without that process",
    ]


def _report(session: Session, experiment: Experiment, workload: Workload, timed: range) -> None:
    records = experiment.records
    figures = [arm_figures(arm, record, workload, timed) for arm, record in records.items()]
    gains = step_gains(records, timed)
    differences = loss_differences(records, next(iter(records)))
    best = gains[-1]
    result = verdict(f"{best.over.name} over {best.under.name}: {best}", experiment.others, len(best.ratios))
    tables = [
        result,
        *disturbed_line(experiment.others, experiment.repeated),
        "",
        *arms_table("arm", figures, records, -1, result),
        *gains_table(gains, result),
        *bytes_table(figures),
        "",
        *NOTES,
        "idle: not on a core, be it for waiting or because another program is; mean over ranks",
        loss_sentence(differences),
    ]
    print("", *tables, sep="\n")
    session.write_summary(
        {
            "experiment": _TITLE,
            "verdict": result,
            **circumstances(experiment.others, experiment.repeated),
            "arms": [figure.summary(records[figure.arm]) for figure in figures],
            "gains": [gain.summary(result) for gain in gains],
            "largest_loss_difference": largest(differences),
        }
    )
    title = f"{_TITLE}, {ranks_of(session.context.size)}"
    from pictures import Pictures  # imports Matplotlib, on one rank only

    pictures = Pictures(session.options.report, title, result)
    pictures.gains(gains)
    pictures.timeline(records, timed, idle="not on a core")
    pictures.idle(figures)
    pictures.losses(records, differences)
    pictures.write_page(tables)
