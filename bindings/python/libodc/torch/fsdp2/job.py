# SPDX-License-Identifier: Apache-2.0
"""A model that trains over ODC: the phases of its minibatches."""

from __future__ import annotations

import enum
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ..._abi import Reduction
from ..._arguments import told
from ..._resumable import Publication
from ...context import Context
from ...errors import ArgumentError, Error, JobError, PhaseError
from ...exact import ExactSum
from ...tracing.trace import Trace, trace
from . import abort_hook
from .advice import Advice
from .backward import Backwards
from .clip import scale, total_norm
from .collective_count import CollectiveCount
from .crosscheck import Crosscheck
from .exchange import Exchange, Exchanged
from .gradients import JobGradients
from .group import Group, JobHooks
from .homes import move_out
from .local_shards import LocalShards
from .overlap import Overlap, told_of_last
from .participation import Participation
from .report import MinibatchReport, Reports
from .spans import Spans
from .steps import Steps
from .streams import Streams, keep_while_used
from .summary import JobSummary, RankSummary
from .torch_state import reset, reset_after_exception
from .totals import Given, check_divisor, given
from .whole import check_same_ranks, copy_parameters, kept_unsharded

logger = logging.getLogger("libodc")
T = TypeVar("T")


class Phase(enum.Enum):
    PUBLISHED = "the minibatch is running"
    SYNCED = "gradients are final, parameters may change"
    CLOSED = "removed"


class Job:
    """Made by attach. Its methods are for one thread, and all ranks must make the same calls."""

    def __init__(
        self,
        model: nn.Module,
        groups: list[Group],
        context: Context,
        optimizers: list[Optimizer],
        streams: Streams,
        overlap: Overlap | None,
        crosscheck: Crosscheck | None,
    ) -> None:
        self._groups = groups
        self._fsdp_groups = [group.fsdp for group in groups]
        self._shards = LocalShards(groups)
        self._gradients = JobGradients(groups, optimizers)
        self._context = context
        self._steps = Steps()  # of calls that all ranks make
        self._exchange = Exchange(context, self._steps, sum(len(group.trainable) for group in groups))
        self._publication = Publication(context._handle)  # after the last sync
        self._streams = streams
        self._crosscheck = crosscheck
        self._participation = Participation()
        self._hooks = JobHooks(
            backwards=Backwards(self._gradients.drop_zeros),
            participation=self._participation,
            overlap=overlap,
            reads_only=not optimizers,
            before_gather=self._before_gather,
            before_exchange=self._before_exchange,
            before_reduce=self._before_reduce,
            reduces_alone=self._reduces_alone,
            add=self._add,
            abort=self._abort,
        )
        self._reports = Reports(context)
        self._synced = 0  # calls of sync_gradients
        self._spans = Spans()
        self._phase = Phase.SYNCED
        self._optimizers = optimizers
        self._edited = False  # parameters changed after the publish, before an optimizer's step
        self._editing = False
        self._whole = False  # within unsharded()
        self._collectives = CollectiveCount()  # since this minibatch's first forward
        self._advice = Advice(context.rank)
        self._installed: list[Any] = []
        for index, optimizer in enumerate(optimizers):
            # A step that is compiled is that without its hooks.
            before_step = torch.compiler.disable(self._before_step)
            noted_step = torch.compiler.disable(self._noted_step(index))
            self._installed.append(optimizer.register_step_pre_hook(before_step))
            self._installed.append(optimizer.register_step_post_hook(noted_step))
        # Runs before FSDP2's own hooks, which gather; a single rank gathers nothing.
        before_forward = torch.compiler.disable(lambda *_: self._before_forward())
        modules: list[Any] = [model, *(group.fsdp.module for group in groups)]
        for module in dict.fromkeys(modules):
            self._installed.append(module.register_forward_pre_hook(before_forward, prepend=True))
        if not optimizers:
            after_fork = torch.compiler.disable(lambda *_: self._move_in_after_fork())
            self._installed.append(model.register_forward_pre_hook(after_fork, prepend=True))

    # ---- called by users ----

    @property
    def context(self) -> Context:
        """Gives access to routes and statistics."""
        return self._context

    def microbatches(self, minibatch: Iterable[T]) -> Iterator[T]:
        """Yields this rank's microbatches, each for one forward and backward. In the last one of a list a group's
        additions end with its own backward: between hosts the host's sums can then be sent while the rest is computed,
        so a minibatch has one list. Of microbatches that ranks claim nobody knows the last one before its end."""
        return told_of_last(minibatch, self._hooks.overlap)

    def sync_gradients(
        self,
        *,
        divisor: float | None = None,
        weight: float | None = None,
        sums: Mapping[str, float | torch.Tensor | ExactSum] | None = None,
        maxima: Mapping[str, float | torch.Tensor] | None = None,
        valid: bool = True,
    ) -> MinibatchReport:
        """Ends the minibatch: the one wait for all ranks. Then each .grad holds the sum over all microbatches of all
        ranks, divided by `divisor`, or by the sum over ranks of `weight` (what this rank's part counts: its tokens,
        samples or microbatches), or by default as in plain FSDP2 for one microbatch: by the factor that was set before
        attach, or by the number of ranks. All ranks must pass the same divisor.

        `sums`, `maxima`: local numbers to combine over ranks, by name; a rank may omit names for which it has nothing.
        Of an ExactSum the bits do not depend on the number of ranks.
        `maxima` take a short reduction of their own after the wait.

        `valid`: False on any rank (its backward has run out of memory, or its loss is infinite) drops the minibatch on
        all ranks. Other arguments may then differ.
        """
        numbers = given(sums, maxima)
        check_divisor(divisor, weight)
        divisor = None if divisor is None else float(divisor)
        return self._steps.call("sync_gradients()", self._sync_gradients, numbers, divisor, weight, valid)

    def _sync_gradients(
        self, numbers: Given, divisor: float | None, weight: float | None, valid: bool
    ) -> MinibatchReport:
        step = self._steps.run
        step(lambda: self._prepare_sync(valid))
        call = f"sync_gradients(divisor={divisor}, weight={'…' if weight is not None else None})"
        done = self._sync(call, 0.0 if weight is None else float(weight), numbers, vetoes=not valid)
        step(self._check_streams)
        divisor = step(lambda: self._begin_fill(divisor, weight, done))
        if done.summary.vetoes == 0:
            step(lambda: self._fill(done.summary.took_part, divisor))
        report: MinibatchReport = step(lambda: self._reports.of(self._synced, done, divisor))
        self._synced = report.minibatch + 1
        return report

    def clip_grad_norm_(self, max_norm: float, *, error_if_nonfinite: bool = False) -> float:
        """Collective, between sync_gradients() and the step: scales the gradients of all sharded parameters so that
        their 2-norm is at most `max_norm`; returns the norm before. As torch.nn.utils.clip_grad_norm_, but the norm's
        bits do not depend on the number of ranks, so with attach(sums="exact") neither do those of the clipped
        gradients."""
        if not max_norm > 0:
            raise ArgumentError(f"max_norm is {max_norm}, must be above 0")
        self._check_open("clip_grad_norm_()")
        if self._phase is not Phase.SYNCED:
            raise PhaseError("clip_grad_norm_(): call it after sync_gradients(), before optimizer.step()")
        norm = self._steps.call("clip_grad_norm_()", self._clip, max_norm, error_if_nonfinite)
        if error_if_nonfinite and not norm < math.inf:
            raise RuntimeError(f"the norm of the gradients is {norm}, so they cannot be clipped")
        return norm

    def _clip(self, max_norm: float, only_finite: bool) -> float:
        gradients = self._gradients.local()
        with torch.no_grad():
            norm = total_norm(gradients, self._exchange.reduce)
            by = max_norm / (norm + 1e-6)
            if not by >= 1 and (math.isfinite(norm) or not only_finite):
                scale(gradients, by, self._steps)
        return norm

    def exact_state(self) -> dict[str, float]:
        """Collective: with attach(sums="exact"), what a checkpoint keeps beside model and optimizer, so that a job of
        any number of ranks that goes on from it with attach(exact_state=...) has the same bits; else empty."""
        self._check_open("exact_state()")
        own = {group.name: group.largest for group in self._groups if group.largest is not None}
        if not own:
            return {}
        if self._context.size == 1:
            return own
        # In any phase, so not by the context.
        everybody: list[Any] = [None] * self._context.size
        dist.all_gather_object(everybody, own, group=self._groups[0].layout.process_group)
        return {name: max(one[name] for one in everybody) for name in own}

    def publish(self) -> None:
        """Collective: parameters were edited outside of optimizer.step() (loading, averaging, clamping) while no rank
        ran a forward, as right after a step. If one may, edit within editing()."""
        self._steps.call("publish()", self._publish_edits)

    def _publish_edits(self) -> None:
        self._end_before_edits("publish()")
        self._steps.run(self._publish)

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Collective, around edits outside of optimizer.step(), at any time between minibatches: waits until other
        ranks' forwards have finished, and publishes at the end. No forward or publish() belongs into the block; a step
        there is an edit, too. If it raises, nothing is published before the next forward, sync or close()."""
        self._steps.call("editing()", self._end_before_edits, "publish() by editing()")
        self._editing = True
        try:
            yield
        finally:
            self._editing = False
        self._publish()

    @contextmanager
    def unsharded(self) -> Iterator[None]:
        """Gathers all parameters, which forwards in the block then use without moving anything: any number of them on
        each rank, as for generating text token by token. Waits for the owners' publishes only. At the end of the block
        the parameters are sharded again; a block inside another changes nothing. No backward, sync, step or edit
        belongs into it. Needs memory for all parameters."""
        if self._whole:
            yield
            return
        with torch.no_grad():  # otherwise collectives would be counted from here on
            self._before_gather()
        with kept_unsharded(self._groups):
            self._whole = True
            try:
                yield
            finally:
                self._whole = False

    def refresh_from(self, other: Job) -> None:
        """Collective: copies the parameters of another job's model, as they are now, and publishes them: a reference's
        from its policy's. The models are alike, and on the same ranks."""
        self._check_open("refresh_from()")
        other._check_open("refresh_from(), of the other job")
        for job in (self, other):
            job._check_sharded("refresh_from()")
        check_same_ranks(other._context, self._context)
        self._steps.call("refresh_from()", self._refresh, other)

    def _refresh(self, other: Job) -> None:
        for job in (self, other):
            reset(job._fsdp_groups)
            job._shards.refresh()
        self._end_before_edits("publish() by refresh_from()")
        self._steps.run(lambda: copy_parameters(other._groups, self._groups))
        self._steps.run(self._publish)

    @contextmanager
    def trace(self, directory: str | os.PathLike[str]) -> Iterator[Trace]:
        """Collective: like libodc.trace, around whole minibatches. Time outside of communication is shown as computing,
        or as stepping between sync and publish."""
        with trace(self._context, directory) as recorded, self._spans.shown_in(recorded):
            self._spans.show("compute" if self._phase is Phase.PUBLISHED else "step")
            yield recorded
            still_to_step = self._steps.call("the end of trace()", self._end_traced)
        if not still_to_step:
            self._publish()

    def _end_traced(self) -> bool:
        self._check_open("the end of trace()")
        self._check_no_gradients("the end of trace() would lose them")
        still_to_step: bool = self._steps.run(lambda: self._phase is Phase.SYNCED)
        self._end_minibatch("the end of trace()")
        return still_to_step

    def close(self) -> None:
        """Collective: waits for all ranks, so that none ends while others read from it; then removes the hooks. After
        an exception in another such call, which others may have finished, it resumes that instead."""
        if self._phase is Phase.CLOSED:
            return
        self._check_sharded("close()")
        if self._any_gradients() and not self._steps.interrupted:
            logger.warning("odc: close(): gradients of this minibatch were not synced and are lost")
        try:
            if self._steps.interrupted:
                self._steps.resume()
            else:
                self._steps.call("close()", self._end_minibatch, "close()")
        finally:
            self.remove()

    def remove(self) -> None:
        """Returns the model to plain FSDP2 and leaves the job without waiting. Ranks that still wait for this one get
        an error that it left."""
        if self._phase is Phase.CLOSED:
            return
        self._phase = Phase.CLOSED
        abort_hook.remove(self._hooks)
        if self._hooks.overlap is not None:
            self._hooks.overlap.left = True
        for hook in self._installed:
            hook.remove()
        with ExitStack() as stack:  # all of it, whatever fails
            stack.callback(keep_while_used, self._streams, self._groups)
            stack.callback(self._context.close)
            stack.callback(move_out, [group.homes for group in self._groups])
            for group in self._groups:
                stack.callback(group.views.leave)
                stack.callback(group.restore)
            self._gradients.drop_zeros()
            reset(self._fsdp_groups)

    def _abort(self, error: BaseException) -> None:
        """A job error reaches all ranks anyway."""
        if self._phase is not Phase.CLOSED and not isinstance(error, (JobError, GeneratorExit)):
            self._context.abort(f"it raised {told(error)}")

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            try:
                self._abort(error)
            finally:
                self.remove()

    # ---- called by the hooks ----

    def _before_forward(self) -> None:
        self._hooks.backwards.note_forward()
        if self._hooks.reads_only:
            with torch.no_grad():
                self._streams.check_completed()
        self._before_gather()
        self._collectives.notice_threads()

    def _move_in_after_fork(self) -> None:
        """Parameters that are only read are not published again, and moved out of their slices for a fork."""
        if not self._shards.moved_out or self._phase is not Phase.PUBLISHED or self._whole:
            return
        reset(self._fsdp_groups)
        if self._differing() is None:
            with torch.no_grad():
                self._shards.publish()  # peers may read what is written, which is what is there

    def _before_gather(self) -> None:
        self._steps.check_idle("a forward")
        if self._phase is not Phase.PUBLISHED:
            self._check_open("a forward")
            self._check_not_editing("a forward")
            # Parameters are needed although some optimizers have not stepped: peers must not wait forever.
            self._publish()
        if torch.is_grad_enabled():  # not in evaluations and other models before it
            self._collectives.begin()

    def _before_exchange(self) -> None:
        self._check_open("a Pool")
        self._check_not_editing("a Pool")
        self._steps.check_idle("a Pool")
        if self._phase is Phase.PUBLISHED:
            return
        if self._gradients.unused():
            raise PhaseError(
                "a Pool between sync_gradients() and optimizer.step(): its samples would be published before the "
                "step, and nothing could be reduced for clipping; step first, or clear the gradients to skip the step"
            )
        self._publish()  # peers must not wait forever for the parameters

    def _before_reduce(self, group: Group) -> None:
        self._check_open("a backward")
        self._check_sharded("a backward")
        self._steps.check_idle("a backward")
        self._collectives.notice_threads()
        if not self._optimizers:
            raise PhaseError("a backward through a model that was attached without an optimizer: it is only read")
        if self._phase is Phase.SYNCED:
            raise PhaseError("a backward between sync_gradients() and optimizer.step(): its gradients belong nowhere")
        self._hooks.backwards.note_gradient()
        if self._crosscheck is not None:
            self._crosscheck.read()
        self._gradients.before_reduce(group)

    def _reduces_alone(self, group: Group, full: torch.Tensor) -> None:
        if self._crosscheck is not None:
            self._crosscheck.add_later(group, full)

    def _add(self, group: Group, full: torch.Tensor) -> None:
        if self._crosscheck is not None:
            self._crosscheck.add(group, full)
        group.add(full, self._hooks.overlap)

    # ---- phases ----

    def _begin(self) -> None:
        """Publishes for the first time."""
        reset(self._fsdp_groups)
        self._publish()
        abort_hook.add(self._hooks)

    def _publish(self) -> None:
        """After an exception it is called again."""
        if not self._publication.done:
            with torch.no_grad():
                if self._shards.publish():
                    self._advice.on_copies(*self._shards.left())
                self._gradients.let_go()
            self._publication.run()
        self._streams.published()
        self._collectives.forget()
        self._spans.show("compute")
        self._phase = Phase.PUBLISHED

    def _prepare_sync(self, valid: bool) -> None:
        self._check_may_sync(valid)
        if not valid:
            self._give_up()
        elif self._phase is Phase.PUBLISHED:
            with torch.no_grad():
                self._shards.check_unedited()
        self._check_finished()
        self._gradients.drop_zeros()
        if self._phase is Phase.SYNCED:  # some optimizers have not stepped
            self._publish()
        if not self._participation.is_complete():
            for group in self._groups:
                group.check_reduced()
        if self._crosscheck is not None:
            self._crosscheck.read()
        reset(self._fsdp_groups)

    def _begin_fill(self, divisor: float | None, weight: float | None, done: Exchanged) -> float | None:
        """Returns what the sums are divided by."""
        self._gradients.await_steps()
        self._advice.on_collectives(done.summary.collectives, self._synced)
        if done.summary.vetoes > 0:
            return None
        self._gradients.begin_fill()
        if weight is not None:
            if done.total_weight == 0:
                self._advice.on_no_weight()
            return done.total_weight or 1.0
        if divisor is None:
            self._advice.on_uneven(done.summary.microbatches)
        return divisor

    def _sync(self, call: str, weight: float, numbers: Given, *, vetoes: bool = False) -> Exchanged:
        """Ends the minibatch. `call`: what all ranks must have called."""
        own = partial(self._own_summary, call, numbers, vetoes)
        return self._exchange.sync(own, weight, numbers, self._begin_after)

    def _own_summary(self, call: str, numbers: Given, vetoes: bool) -> RankSummary:
        return RankSummary(
            self._participation.each(),
            self._participation.most_backwards(),
            len(self._context.claims()),
            call,
            vetoes,
            self._collectives.value(),
            self._exchange.has_new(numbers),
            bool(numbers.maxima),
        )

    def _begin_after(self, summary: JobSummary) -> None:
        """All ranks have arrived: ends the minibatch on this one."""
        self._publication = Publication(self._context._handle)
        self._phase = Phase.SYNCED
        self._spans.show("step")
        if summary.vetoes == 0:
            self._gradients.synced()
        else:
            self._gradients.drop()
            if self._crosscheck is not None:
                self._crosscheck.forget()
        if self._hooks.overlap is not None:
            self._hooks.overlap.synced()
        self._participation.forget()
        self._hooks.backwards.forget()

    def _check_streams(self) -> None:
        with torch.no_grad():
            self._streams.check()

    def _give_up(self) -> None:
        """Drops the gradients of this minibatch that FSDP2 holds, and what a backward that has raised left in it."""
        reset_after_exception(self._fsdp_groups)
        self._hooks.backwards.forget()
        for group in self._groups:
            group.drop_pending()

    def _end_before_edits(self, call: str) -> None:
        """As _end_minibatch(). If a rank has edited its part of what FSDP2 had gathered, which goes, all raise; if one
        may have read what another has edited, rank 0 warns."""
        self._check_open(call)
        self._check_no_gradients(f"{call} would lose them")
        self._check_not_editing(call)
        self._check_sharded(call)
        edited = self._steps.run(lambda: self._first(lambda group: group.edited_copy()))
        has_gathered, in_slice = self._steps.run(self._reads_and_edits)
        if self._sync_minibatch(call, vetoes=edited is not None).vetoes > 0:
            self._steps.run(self._publish)
            raise PhaseError(
                f"{call}: {edited or 'a parameter, on another rank,'} was edited while it was gathered, and only its "
                "shards are kept: edit the model's parameters within job.editing(), or call reshard() of its module "
                "before the edit (FSDP2 leaves the root's gathered after a forward)"
            )
        if self._exchange.reduce([float(has_gathered), float(in_slice is not None)], Reduction.MAX) == [1.0, 1.0]:
            self._advice.on_edits(call, in_slice or "a parameter, on another rank,")
        self._steps.run(self._check_streams)  # last, as it may raise on this rank only

    def _reads_and_edits(self) -> tuple[bool, str | None]:
        """Since the publish: whether this rank has run forwards, and words for a parameter that it edited in place."""
        if self._phase is not Phase.PUBLISHED:
            return False, None
        return self._participation.has_gathered(), self._first(lambda group: group.homes.edited())

    def _end_minibatch(self, call: str) -> None:
        """Collective, in any phase of each rank: one may have stepped while another has skipped the step."""
        self._sync_minibatch(call)
        self._steps.run(self._check_streams)

    def _sync_minibatch(self, call: str, *, vetoes: bool = False) -> JobSummary:
        self._check_not_editing(call)
        self._check_sharded(call)
        self._steps.run(self._prepare_end)
        return self._sync(call, 0.0, Given(), vetoes=vetoes).summary

    def _prepare_end(self) -> None:
        reset(self._fsdp_groups)
        if self._phase is Phase.SYNCED:
            self._publish()

    def _fill(self, took_part: list[bool], divisor: float | None) -> None:
        with torch.no_grad():
            self._gradients.fill(took_part, divisor)
            if self._crosscheck is not None:
                divisors = [group.divisor if divisor is None else divisor for group in self._groups]
                try:
                    self._crosscheck.compare(self._groups, divisors)
                except Error:
                    self._crosscheck = None
                    raise
                self._crosscheck = None

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._editing:  # it is an edit as well: loading makes a step to create an optimizer's state
            return
        self._check_sharded("a step")
        self._steps.check_idle("a step")
        if self._phase is Phase.PUBLISHED:
            self._check_no_gradients("call sync_gradients() before optimizer.step()")
            self._edited = self._differing() is not None
            if self._gradients.let_go_of(optimizer):
                self._advice.on_step_again()

    def _noted_step(self, index: int) -> Callable[..., None]:
        def note(*_: Any) -> None:
            if self._editing:
                self._gradients.note_step(index)
                return
            if self._phase is Phase.PUBLISHED and not self._edited:
                # Steps without gradients are harmless: DCP makes one to create an optimizer's state.
                self._check_unchanged()
            self._gradients.note_step(index)
            if self._phase is Phase.SYNCED and self._gradients.all_stepped:
                self._publish()

        return note

    # ---- checks ----

    def _check_open(self, what: str) -> None:
        if self._phase is Phase.CLOSED:
            raise PhaseError(f"{what}: this job has been closed or removed")

    def _check_not_editing(self, what: str) -> None:
        if self._editing:
            raise PhaseError(f"{what} within editing(): end the block first, which publishes the edits")

    def _check_sharded(self, what: str) -> None:
        if self._whole:
            raise PhaseError(f"{what} within unsharded(): end the block first, which is for forwards only")

    def _check_finished(self) -> None:
        if self._hooks.backwards.unfinished():
            reached = sum(1 for group in self._groups if group.participation.any())
            raise PhaseError(
                f"a backward of minibatch {self._synced} has raised before its end, and {reached} of "
                f"{len(self._groups)} FSDP groups have gradients of it, which cannot be taken out of the sums: call "
                "sync_gradients(valid=False), and all ranks drop the minibatch"
            )

    def _check_may_sync(self, valid: bool) -> None:
        self._check_open("sync_gradients()")
        self._check_not_editing("sync_gradients()")
        self._check_sharded("sync_gradients()")
        if not self._optimizers:
            raise PhaseError("sync_gradients(): attached without an optimizer, so there are no gradients")
        if valid and (self._gradients.left_over or (not self._any_gradients() and self._gradients.unused())):
            raise PhaseError(
                "a second sync_gradients() without a step or cleared gradients: to accumulate, run more backwards "
                "before one sync; to skip a step, clear the gradients before the next backward. "
                "sync_gradients(valid=False) drops this minibatch. If an exception has ended the first call as it "
                "returned, it is done"
            )

    def _any_gradients(self) -> bool:
        if self._phase is not Phase.PUBLISHED:
            return False
        return self._participation.any()

    def _check_no_gradients(self, why: str) -> None:
        if self._any_gradients():
            raise PhaseError(f"gradients of this minibatch are not synced yet: {why}")

    def _differing(self) -> str | None:
        """Words for a parameter that differs from the published one."""
        return self._first(lambda group: group.differs())

    def _first(self, told_by: Callable[[Group], str | None]) -> str | None:
        with torch.no_grad():
            return next((what for group in self._groups if (what := told_by(group)) is not None), None)

    def _check_unchanged(self) -> None:
        if (what := self._differing()) is not None:
            raise PhaseError(
                f"optimizer.step() changed {what} after it was published: a forward, publish() or editing() between "
                "sync_gradients() and step() publishes; step first"
            )
