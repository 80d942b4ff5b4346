# SPDX-License-Identifier: Apache-2.0
"""Collective calls that an exception may end anywhere (of a signal's handler, or where memory is short), and that are
then resumed: peers have gone on, so what has been done is not done again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ...errors import ArgumentError, Error, InterruptedWaitError, PhaseError

Result = TypeVar("Result")


class Steps:
    """Of one call at a time. Between its steps a call changes nothing, and a step that was ended by an exception, if
    only as it returned, may be run again. Errors of libodc, which say that a call is not to be repeated, end it; after
    other exceptions, and InterruptedWaitError, it is to be repeated with the same arguments."""

    def __init__(self) -> None:
        self._call = ""
        self._arguments: tuple[object, ...] = ()
        self._body: Callable[..., Any] | None = None  # of the call that is not finished
        self._results: list[Any] = []
        self._next = 0

    def call(self, call: str, body: Callable[..., Result], *arguments: object) -> Result:
        """Runs `body`, whose steps are in the same order each time, or resumes the same call's."""
        self.check_idle(call)
        if self._body is None:
            self._results = []
            self._call, self._arguments, self._body = call, arguments, body
        elif repr(arguments) != repr(self._arguments):  # in which a NaN equals itself
            raise ArgumentError(
                f"{call} was ended by an exception before it was done, and is repeated with other arguments: peers "
                "have the first ones, so repeat it with those"
            )
        result: Result = self.resume()
        return result

    def resume(self) -> Any:
        """Runs to its end the call that was interrupted."""
        assert self._body is not None
        self._next = 0
        try:
            result = self._body(*self._arguments)
        except Error as error:
            if not isinstance(error, InterruptedWaitError):
                self._body = None
            raise
        self._body = None  # by no call, behind which Python would look for signals: after this none is to be repeated
        return result

    @property
    def interrupted(self) -> str:
        """The call that is to be repeated; empty: none."""
        return "" if self._body is None else self._call

    def check_idle(self, call: str) -> None:
        if self._body is not None and call != self._call:
            raise PhaseError(
                f"{call}: an exception has ended {self._call} before it was done: repeat that first, or remove() the "
                "job; what it has done already is kept"
            )

    def run(self, step: Callable[[], Result]) -> Result:
        """Within a call: a step that has finished before is not run, and returns its first result again."""
        if self._next == len(self._results):
            self._results.append(step())
        result: Result = self._results[self._next]
        self._next += 1
        return result
