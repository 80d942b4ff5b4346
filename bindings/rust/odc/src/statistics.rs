// SPDX-License-Identifier: Apache-2.0
//! Statistics, routes, and reductions.

use odc_sys as sys;

use crate::text::string;

/// How values are combined over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Reduction {
    /// Added in an order that depends on the number of ranks only.
    Sum = sys::ODC_SUM,
    /// The largest; a NaN wins.
    Max = sys::ODC_MAX,
}

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident from $c:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl $name {
            pub(crate) fn from_c(c: &sys::$c) -> Self {
                $name { $($field: c.$field,)* }
            }
        }
    };
}

counters! {
    /// Totals of a context.
    Stats from odc_stats {
        /// Gathers.
        gather_calls,
        /// Bytes handed to this rank, its own slices included.
        gather_bytes,
        /// Additions.
        scatter_add_calls,
        /// Bytes of gradients handed in.
        scatter_add_bytes,
        /// Syncs.
        syncs,
        /// Nanoseconds waited for owners' publishes.
        publish_wait_ns,
        /// Nanoseconds waited for the last rank to arrive in sync, or to reduce.
        sync_wait_ns,
        /// Nanoseconds waited for another rank's addition to the same stripe.
        lock_wait_ns,
        /// Bytes of memory in this rank's slices now.
        slice_bytes,
        /// Small messages to other hosts.
        packets_sent,
        /// Bytes of host memory pinned for GPUs: host shadows of slices, and staging.
        pinned_bytes,
        /// Elements of gradients that were too large for this rank's exact sums.
        clamped_addends,
        /// The rank that arrived last in the last sync; 0 before the first.
        sync_last_rank,
        /// Bytes of slices of other hosts that this rank read, for itself or into its host's node cache.
        fetched_bytes,
        /// Bytes of slices that were handed to this rank out of the node cache.
        served_bytes,
        /// Bytes of gradients added to slices of other hosts.
        sent_bytes,
    }
}

counters! {
    /// What this rank waited for another.
    PeerStats from odc_peer_stats {
        /// The part of `Stats::publish_wait_ns` spent on it.
        publish_wait_ns,
        /// How much later than this rank it arrived in sync, summed.
        sync_late_ns,
        /// The number of syncs in which it was the last one.
        sync_last,
    }
}

/// The route to a rank's memory of one kind. Fields that do not apply are "".
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// "cuda", "shm", "fabric"; "": there is no route.
    pub transport: String,
    /// libfabric's provider.
    pub provider: String,
    /// The NIC at this end.
    pub nic: String,
    /// The NIC at the other end.
    pub peer_nic: String,
    /// Why this route.
    pub why: String,
    /// Why not the other transports.
    pub why_not: String,
    /// How gathers read: "direct", or "staged" in the library's buffers; "none": there is no route.
    pub access: String,
}

impl Route {
    /// # Safety
    /// The strings of `c` live.
    pub(crate) unsafe fn from_c(c: &sys::odc_route) -> Self {
        // SAFETY: the caller's.
        unsafe {
            Route {
                transport: string(c.transport),
                provider: string(c.provider),
                nic: string(c.nic),
                peer_nic: string(c.peer_nic),
                why: string(c.why),
                why_not: string(c.why_not),
                access: string(c.access),
            }
        }
    }
}
