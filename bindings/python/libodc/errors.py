# SPDX-License-Identifier: Apache-2.0
"""One exception per status; its text is the C library's sentence."""

from ._abi import Status, lib


class Error(RuntimeError):
    """Raised by every failed call. `status` is the C library's."""

    status: Status = Status.OK


class ArgumentError(Error, ValueError):
    status = Status.ERROR_ARGUMENT


class PhaseError(Error):
    """A call in the wrong phase; nothing has changed."""

    status = Status.ERROR_PHASE


class NoMemoryError(Error, MemoryError):
    status = Status.ERROR_NO_MEMORY


class UnsupportedError(Error):
    status = Status.ERROR_UNSUPPORTED


class SystemRefusedError(Error, OSError):
    status = Status.ERROR_SYSTEM


class InterruptedWaitError(Error):
    """`interrupted` ended the wait; the call may be repeated."""

    status = Status.ERROR_INTERRUPTED


class RendezvousError(Error):
    status = Status.ERROR_RENDEZVOUS


class InternalError(Error):
    status = Status.ERROR_INTERNAL


class JobError(Error):
    """Permanent; all ranks get it with the same text."""


class PeerLostError(JobError, ConnectionError):
    status = Status.ERROR_PEER_LOST


class AbortedError(JobError):
    status = Status.ERROR_ABORTED


class MissedDeadlineError(JobError, TimeoutError):
    status = Status.ERROR_TIMEOUT


class MismatchError(JobError):
    status = Status.ERROR_MISMATCH


class DeviceError(JobError):
    """A rank's GPU failed, whichever kernel caused it."""

    status = Status.ERROR_DEVICE


_BY_STATUS = {
    kind.status: kind
    for kind in (
        ArgumentError,
        PhaseError,
        NoMemoryError,
        UnsupportedError,
        SystemRefusedError,
        InterruptedWaitError,
        RendezvousError,
        InternalError,
        PeerLostError,
        AbortedError,
        MissedDeadlineError,
        MismatchError,
        DeviceError,
    )
}


def check(status: int) -> None:
    """Raises the exception for the last failed call of this thread."""
    if status == Status.OK:
        return
    text = lib.odc_last_error().decode(errors="replace")
    kind = _BY_STATUS.get(Status(status)) if status in Status._value2member_map_ else None
    if kind is None:
        raise Error(f"status {status}: {text}")
    raise kind(text)
