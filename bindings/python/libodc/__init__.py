# SPDX-License-Identifier: Apache-2.0
"""On-Demand Communication: one-sided gathers and scatter-adds of sharded tensors, one sync per minibatch.

The words are those of the C library (include/odc/odc.h), which this package calls and whose sentences its exceptions
carry. It needs neither torch nor NumPy.
"""

from ._abi import Memory, Policy, Reduction, Status, Type, WindowOrder, build, library_path, version
from .context import Context, init, stats
from .errors import (
    AbortedError,
    ArgumentError,
    DeviceError,
    Error,
    InternalError,
    InterruptedWaitError,
    JobError,
    MismatchError,
    MissedDeadlineError,
    NoMemoryError,
    PeerLostError,
    PhaseError,
    RendezvousError,
    SystemRefusedError,
    UnsupportedError,
)
from .exact import ExactSum
from .memory import View
from .planning import Plan, WindowPlan, plan, plan_cost, plan_window
from .route import Route
from .shard import Operation, Shard, ShardDescription, Slice
from .statistics import ContextStats, PeerStats, Report, Stats
from .topology import topology
from .tracing.trace import Trace, trace

__version__ = version()

__all__ = [
    "AbortedError",
    "ArgumentError",
    "Context",
    "ContextStats",
    "DeviceError",
    "Error",
    "ExactSum",
    "InternalError",
    "InterruptedWaitError",
    "JobError",
    "Memory",
    "MismatchError",
    "MissedDeadlineError",
    "NoMemoryError",
    "Operation",
    "PeerLostError",
    "PeerStats",
    "PhaseError",
    "Plan",
    "Policy",
    "Reduction",
    "RendezvousError",
    "Report",
    "Route",
    "Shard",
    "ShardDescription",
    "Slice",
    "Stats",
    "Status",
    "SystemRefusedError",
    "Trace",
    "Type",
    "UnsupportedError",
    "View",
    "WindowOrder",
    "WindowPlan",
    "build",
    "init",
    "library_path",
    "plan",
    "plan_cost",
    "plan_window",
    "stats",
    "topology",
    "trace",
]
