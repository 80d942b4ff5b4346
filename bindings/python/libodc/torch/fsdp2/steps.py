# SPDX-License-Identifier: Apache-2.0
"""Collective calls that an exception may end anywhere (of a signal's handler, or where memory is short), and that are
then resumed: peers have gone on, so what has been done is not done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from ...errors import ArgumentError, Error, InterruptedWaitError, PhaseError

Result = TypeVar("Result")


@dataclass
class _Call:
    name: str
    body: Callable[..., Any]
    arguments: tuple[object, ...]
    records_gradients: bool  # torch's mode, which an exception in its no_grad may leave changed
    results: list[Any] = field(default_factory=list)  # of its finished steps
    next: int = 0
    sent: bool = False  # peers may have something of it


class Steps:
    """Of one call at a time. Between its steps a call changes nothing, and a step that was ended by an exception, if
    only as it returned, may be run again. Errors of libodc, which say that a call is not to be repeated, end it. After
    other exceptions, and InterruptedWaitError, a call of which something was sent is to be repeated with the same
    arguments."""

    def __init__(self) -> None:
        self._call: _Call | None = None  # that is not finished

    def call(self, name: str, body: Callable[..., Result], *arguments: object) -> Result:
        """Runs `body`, whose steps are in the same order each time, or resumes the same call's."""
        self.check_idle(name)
        if self._call is None or not self._call.sent:
            self._call = _Call(name, body, arguments, torch.is_grad_enabled())
        elif repr(arguments) != repr(self._call.arguments):  # as repr, a NaN equals itself
            raise ArgumentError(
                f"{name} was ended by an exception before it was done, and is repeated with other arguments: peers "
                "have the first ones, so repeat it with those"
            )
        result: Result = self.resume()
        return result

    def resume(self) -> Any:
        """Runs to its end the call that was interrupted."""
        assert self._call is not None
        self._call.next = 0
        if not self._call.sent:
            self._call.results.clear()
        torch.set_grad_enabled(self._call.records_gradients)
        try:
            result = self._call.body(*self._call.arguments)
        except Error as error:
            if not isinstance(error, InterruptedWaitError):
                self._call = None
            raise
        self._call = None  # after this line Python handles no signal before it is back in the user's code
        return result

    @property
    def interrupted(self) -> bool:
        """Whether a call has begun that is not finished."""
        return self._call is not None

    def check_idle(self, name: str) -> None:
        """Raises if another call is to be repeated first; one that has sent nothing is given up."""
        call = self._call
        if call is None or name == call.name:
            return
        if call.sent:
            raise PhaseError(
                f"{name}: an exception has ended {call.name} before it was done: repeat that first, or remove() the "
                "job; what it has done already is kept"
            )
        self._call = None

    def run(self, step: Callable[[], Result]) -> Result:
        """Within a call: a step that has finished before is not run, and returns its first result again."""
        call = self._call
        assert call is not None
        if call.next == len(call.results):
            call.results.append(step())
        result: Result = call.results[call.next]
        call.next += 1
        return result

    def send(self, step: Callable[[], Result]) -> Result:
        """A step that sends something to peers."""
        assert self._call is not None
        self._call.sent = True
        return self.run(step)
