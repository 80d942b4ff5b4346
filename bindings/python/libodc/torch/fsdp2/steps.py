# SPDX-License-Identifier: Apache-2.0
"""Collective calls that an exception may end anywhere (of a signal's handler, or where memory is short), and that are
then resumed: peers have gone on, so what has been done is not done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...errors import ArgumentError, Error, InterruptedWaitError, PhaseError

Result = TypeVar("Result")


@dataclass
class _Call:
    name: str
    body: Callable[..., Any]
    arguments: tuple[object, ...]
    results: list[Any] = field(default_factory=list)  # of its finished steps
    next: int = 0


class Steps:
    """Of one call at a time. Between its steps a call changes nothing, and a step that was ended by an exception, if
    only as it returned, may be run again. Errors of libodc, which say that a call is not to be repeated, end it; after
    other exceptions, and InterruptedWaitError, it is to be repeated with the same arguments."""

    def __init__(self) -> None:
        self._call: _Call | None = None  # that is not finished

    def call(self, name: str, body: Callable[..., Result], *arguments: object) -> Result:
        """Runs `body`, whose steps are in the same order each time, or resumes the same call's."""
        self.check_idle(name)
        if self._call is None:
            self._call = _Call(name, body, arguments)
        elif repr(arguments) != repr(self._call.arguments):  # in which a NaN equals itself
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
        try:
            result = self._call.body(*self._call.arguments)
        except Error as error:
            if not isinstance(error, InterruptedWaitError):
                self._call = None
            raise
        self._call = None  # behind this Python looks for no signal before the user's code
        return result

    @property
    def interrupted(self) -> bool:
        """Whether a call is to be repeated."""
        return self._call is not None

    def check_idle(self, name: str) -> None:
        """Raises if another call is to be repeated first."""
        if self._call is not None and name != self._call.name:
            raise PhaseError(
                f"{name}: an exception has ended {self._call.name} before it was done: repeat that first, or remove() "
                "the job; what it has done already is kept"
            )

    def run(self, step: Callable[[], Result]) -> Result:
        """Within a call: a step that has finished before is not run, and returns its first result again."""
        call = self._call
        assert call is not None
        if call.next == len(call.results):
            call.results.append(step())
        result: Result = call.results[call.next]
        call.next += 1
        return result
