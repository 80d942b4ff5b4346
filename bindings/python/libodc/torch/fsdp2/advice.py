# SPDX-License-Identifier: Apache-2.0
"""What a job logs when a training loop is slower, or divides by something else, than its user may think."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

logger = logging.getLogger("libodc")


class Advice:
    """Each once for the job, by rank 0: all ranks make these calls."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._given: set[str] = set()

    def _give(self, about: str, text: str) -> None:
        if about not in self._given:
            self._given.add(about)
            if self._rank == 0:
                logger.warning("odc: %s", text)

    def on_collectives(self, new: int, minibatch: int) -> None:
        if new > 0:
            self._give(
                "collectives",
                f"{new} collectives, on all ranks together, ran between the first forward of minibatch {minibatch} "
                "and its sync: each is a barrier that ODC was to remove; let values travel by "
                "sync_gradients(sums=…, maxima=…)",
            )

    def on_uneven(self, microbatches: Sequence[int]) -> None:
        """No divisor was given."""
        if len(set(microbatches)) > 1:
            total = sum(microbatches)
            self._give(
                "uneven",
                f"ranks ran {microbatches} microbatches and no divisor was given, so the sum over all {total} of them "
                "was divided as if each rank had run one: for a mean over microbatches pass "
                f"sync_gradients(divisor={total}), or sync_gradients(weight=n) with this rank's number of them, or of "
                "the tokens that its loss is a sum over",
            )

    def on_edits(self, call: str, what: str) -> None:
        """Since the last publish some ranks have run forwards and some have edited parameters in their slices."""
        self._give(
            "edits",
            f"{call}: {what} was edited in its slice, and ranks have run forwards since the last publish. One "
            "whose forward was still running may have read it half edited: edit within job.editing(), which waits for "
            'forwards, or attach(parameters="copy")',
        )

    def on_step_again(self) -> None:
        """A step behind a publish, without gradients since that one has let the views go."""
        self._give(
            "step again",
            "optimizer.step() without sync_gradients() since the step before it changes nothing: .grad, which was the "
            "sums themselves, is None, as after zero_grad()",
        )

    def on_copies(self, why: Mapping[str, str], nbytes: int) -> None:
        """Parameters lived in their slices before. `why`: reasons by name. `nbytes`: of them on this rank."""
        if why:
            self._give(
                "copies",
                f"{len(why)} parameters no longer live in their slices: each publish copies them, {nbytes / 2**20:.2f} "
                f"MiB a rank, and their memory is beside the slices: {by_reason(why)}",
            )

    def on_no_weight(self) -> None:
        self._give("weight", "the sum of weight over ranks is 0: the gradients are not divided")


def by_reason(why: Mapping[str, str]) -> str:
    """`why`: reasons by parameters' names."""
    names: dict[str, list[str]] = {}
    for name, reason in why.items():
        names.setdefault(reason, []).append(name)
    return ", ".join(f"{_first_of(several)} ({reason})" for reason, several in names.items())


def _first_of(names: list[str]) -> str:
    return f'"{names[0]}"' if len(names) == 1 else f'"{names[0]}" and {len(names) - 1} more'
