// SPDX-License-Identifier: Apache-2.0
//! libodc's C interface, name by name as `odc/odc.h` has it; what each thing means is said there. The crate `odc` is the
//! safe interface to it.
//!
//! `Default` of a struct is what C begins with: `struct_size` is set, everything else is zero.
//!
//! `tests/layout.rs` compares all of it with `odc.h`, both ways: values, sizes, offsets, types and prototypes.

#![allow(non_camel_case_types)]

use std::os::raw::{c_char, c_int, c_void};

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("libodc is for 64-bit Linux");

// The version of the odc.h that is declared here; the library's own is odc_version().
pub const ODC_VERSION_MAJOR: u32 = 0;
pub const ODC_VERSION_MINOR: u32 = 1;
pub const ODC_VERSION_PATCH: u32 = 0;
pub const ODC_EXACT_DIGITS: u32 = 6;

/// Opaque.
#[repr(C)]
pub struct odc_context {
    _private: [u8; 0],
}

/// Opaque.
#[repr(C)]
pub struct odc_shard {
    _private: [u8; 0],
}

// C's enums are integers here: a newer library may return values that this crate does not know.
pub type odc_status = c_int;
pub const ODC_OK: odc_status = 0;
pub const ODC_DONE: odc_status = 1;
pub const ODC_ERROR_ARGUMENT: odc_status = -1;
pub const ODC_ERROR_PHASE: odc_status = -2;
pub const ODC_ERROR_NO_MEMORY: odc_status = -3;
pub const ODC_ERROR_UNSUPPORTED: odc_status = -4;
pub const ODC_ERROR_SYSTEM: odc_status = -5;
pub const ODC_ERROR_INTERRUPTED: odc_status = -6;
pub const ODC_ERROR_RENDEZVOUS: odc_status = -7;
pub const ODC_ERROR_INTERNAL: odc_status = -8;
pub const ODC_ERROR_PEER_LOST: odc_status = -9;
pub const ODC_ERROR_ABORTED: odc_status = -10;
pub const ODC_ERROR_TIMEOUT: odc_status = -11;
pub const ODC_ERROR_MISMATCH: odc_status = -12;
pub const ODC_ERROR_DEVICE: odc_status = -13;

pub type odc_type = i32;
pub const ODC_F32: odc_type = 1;
pub const ODC_F64: odc_type = 2;
pub const ODC_BF16: odc_type = 3;
pub const ODC_F16: odc_type = 4;
pub const ODC_BYTES: odc_type = 5;

pub type odc_reduction = i32;
pub const ODC_SUM: odc_reduction = 1;
pub const ODC_MAX: odc_reduction = 2;

pub type odc_memory = i32;
pub const ODC_HOST_MEMORY: odc_memory = 1;
pub const ODC_GPU_MEMORY: odc_memory = 2;

pub type odc_summation = i32;
pub const ODC_SUM_EXACT: odc_summation = 1;

pub type odc_log_level = i32;
pub const ODC_LOG_ERROR: odc_log_level = 1;
pub const ODC_LOG_WARN: odc_log_level = 2;
pub const ODC_LOG_INFO: odc_log_level = 3;
pub const ODC_LOG_DEBUG: odc_log_level = 4;
pub const ODC_LOG_TRACE: odc_log_level = 5;

pub type odc_policy = i32;
pub const ODC_LOCAL_SORT: odc_policy = 1;
pub const ODC_LB_MICRO: odc_policy = 2;
pub const ODC_LB_MINI: odc_policy = 3;
pub const ODC_SORTED_ROWS: odc_policy = 4;

pub type odc_window_order = i32;
pub const ODC_WINDOW_EXCHANGED: odc_window_order = 1;
pub const ODC_WINDOW_SORTED: odc_window_order = 2;

pub type odc_all_gather_fn =
    Option<unsafe extern "C" fn(arg: *mut c_void, mine: *const c_void, all: *mut c_void, bytes: usize) -> c_int>;
pub type odc_interrupted_fn = Option<unsafe extern "C" fn(arg: *mut c_void) -> c_int>;
pub type odc_log_fn = Option<unsafe extern "C" fn(arg: *mut c_void, level: i32, line: *const c_char)>;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct odc_config {
    pub struct_size: u64,
    pub rank: i32,
    pub size: i32,
    pub job: *const c_char,
    pub group: *const c_char,
    pub rendezvous: *const c_char,
    pub secret: *const c_char,
    pub timeout_ms: i64,
    pub all_gather: odc_all_gather_fn,
    pub all_gather_arg: *mut c_void,
    pub interrupted: odc_interrupted_fn,
    pub interrupted_arg: *mut c_void,
    pub host: *const c_char,
    pub device: *const c_char,
    pub log: odc_log_fn,
    pub log_arg: *mut c_void,
    pub log_level: i32,
    pub reserved: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct odc_shard_desc {
    pub struct_size: u64,
    pub name: *const c_char,
    pub numel: u64,
    pub parameter_type: i32,
    pub gradient_type: i32,
    pub ranks: *const i32,
    pub slices: *const u64,
    pub rank_count: u64,
    pub memory: i32,
    pub reserved: i32,
    pub sum: i32,
    pub largest: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct odc_slice {
    pub struct_size: u64,
    pub parameters: *mut c_void,
    pub gradients: *mut c_void,
    pub offset: u64,
    pub numel: u64,
    pub parameter_type: i32,
    pub accumulator_type: i32,
    pub memory: i32,
    pub reserved: i32,
    pub sum: i32,
    pub largest: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct odc_stats {
    pub struct_size: u64,
    pub gather_calls: u64,
    pub gather_bytes: u64,
    pub scatter_add_calls: u64,
    pub scatter_add_bytes: u64,
    pub syncs: u64,
    pub publish_wait_ns: u64,
    pub sync_wait_ns: u64,
    pub lock_wait_ns: u64,
    pub slice_bytes: u64,
    pub packets_sent: u64,
    pub pinned_bytes: u64,
    pub clamped_addends: u64,
    pub sync_last_rank: u64,
    pub fetched_bytes: u64,
    pub served_bytes: u64,
    pub sent_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct odc_peer_stats {
    pub struct_size: u64,
    pub publish_wait_ns: u64,
    pub sync_late_ns: u64,
    pub sync_last: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct odc_plan_request {
    pub struct_size: u64,
    pub lengths: *const u64,
    pub count: u64,
    pub max_tokens: u64,
    pub a: f64,
    pub b: f64,
    pub ranks: i32,
    pub policy: i32,
    pub speeds: *const f64,
    pub tail: f64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct odc_plan_summary {
    pub struct_size: u64,
    pub makespan: f64,
    pub lower_bound: f64,
    pub collective_makespan: f64,
    pub items: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct odc_window_request {
    pub struct_size: u64,
    pub samples: *const odc_plan_request,
    pub counts: *const u64,
    pub most_moved: f64,
    pub most_displacement: f64,
    pub minibatches: i32,
    pub order: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct odc_window_summary {
    pub struct_size: u64,
    pub makespan: f64,
    pub makespan_before: f64,
    pub collective_makespan: f64,
    pub collective_makespan_before: f64,
    pub lower_bound: f64,
    pub moved: f64,
    pub displacement: f64,
    pub token_variation: f64,
    pub token_variation_before: f64,
    pub tokens: f64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct odc_transport {
    pub struct_size: u64,
    pub name: *const c_char,
    pub why_not: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct odc_setting {
    pub struct_size: u64,
    pub name: *const c_char,
    pub fallback: *const c_char,
    pub help: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct odc_route {
    pub struct_size: u64,
    pub transport: *const c_char,
    pub provider: *const c_char,
    pub nic: *const c_char,
    pub peer_nic: *const c_char,
    pub why: *const c_char,
    pub why_not: *const c_char,
    pub access: *const c_char,
}

macro_rules! begin_with_size {
    ($($name:ident)*) => {$(
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: integers, floats, pointers and optional functions are all valid as zero.
                let mut zeros: Self = unsafe { std::mem::zeroed() };
                zeros.struct_size = std::mem::size_of::<Self>() as u64;
                zeros
            }
        }
    )*};
}

begin_with_size!(odc_config odc_shard_desc odc_slice odc_stats odc_peer_stats odc_plan_request odc_plan_summary);
begin_with_size!(odc_window_request odc_window_summary odc_transport odc_setting odc_route);

extern "C" {
    pub fn odc_init(config: *const odc_config, out: *mut *mut odc_context) -> odc_status;
    pub fn odc_rank(context: *const odc_context) -> i32;
    pub fn odc_size(context: *const odc_context) -> i32;
    pub fn odc_minibatch(context: *const odc_context) -> u64;
    pub fn odc_shutdown(context: *mut odc_context) -> odc_status;
    pub fn odc_abort(context: *mut odc_context, text: *const c_char) -> odc_status;
    pub fn odc_destroy(context: *mut odc_context);

    pub fn odc_register_shard(
        context: *mut odc_context,
        desc: *const odc_shard_desc,
        out: *mut *mut odc_shard,
    ) -> odc_status;
    pub fn odc_register_shards(
        context: *mut odc_context,
        descs: *const odc_shard_desc,
        count: usize,
        out: *mut *mut odc_shard,
    ) -> odc_status;
    pub fn odc_get_slice(shard: *const odc_shard, out: *mut odc_slice) -> odc_status;
    pub fn odc_release_shard(shard: *mut odc_shard) -> odc_status;

    pub fn odc_publish(shard: *mut odc_shard, stream: *mut c_void) -> odc_status;
    pub fn odc_publish_all(context: *mut odc_context, stream: *mut c_void) -> odc_status;
    pub fn odc_gather(shard: *mut odc_shard, full: *mut c_void, numel: u64, stream: *mut c_void) -> odc_status;
    pub fn odc_scatter_add(shard: *mut odc_shard, full: *const c_void, numel: u64, stream: *mut c_void) -> odc_status;
    pub fn odc_gather_start(
        shard: *mut odc_shard,
        full: *mut c_void,
        numel: u64,
        stream: *mut c_void,
        operation: *mut u64,
    ) -> odc_status;
    pub fn odc_scatter_add_start(
        shard: *mut odc_shard,
        full: *const c_void,
        numel: u64,
        stream: *mut c_void,
        operation: *mut u64,
    ) -> odc_status;
    pub fn odc_wait(context: *mut odc_context, operation: u64) -> odc_status;
    pub fn odc_finish(shard: *mut odc_shard, stream: *mut c_void) -> odc_status;
    pub fn odc_minibatch_sync(context: *mut odc_context) -> odc_status;
    pub fn odc_minibatch_sync_reduce(context: *mut odc_context, values: *mut f64, count: usize, op: i32) -> odc_status;
    pub fn odc_all_reduce(context: *mut odc_context, values: *mut f64, count: usize, op: i32) -> odc_status;

    pub fn odc_exact_add(digits: *mut f64, values: *const f64, count: usize) -> odc_status;
    pub fn odc_exact_value(digits: *const f64, value: *mut f64) -> odc_status;

    pub fn odc_claim(context: *mut odc_context, count: u64, index: *mut u64) -> odc_status;
    pub fn odc_get_claims(
        context: *const odc_context,
        minibatch: u64,
        indices: *mut u64,
        capacity: usize,
        count: *mut usize,
    ) -> odc_status;
    pub fn odc_report_cost(context: *mut odc_context, cost: f64) -> odc_status;
    pub fn odc_get_speeds(context: *const odc_context, speeds: *mut f64, count: usize) -> odc_status;

    pub fn odc_get_stats(context: *const odc_context, out: *mut odc_stats) -> odc_status;
    pub fn odc_get_peer_stats(context: *const odc_context, rank: i32, out: *mut odc_peer_stats) -> odc_status;

    pub fn odc_plan(
        request: *const odc_plan_request,
        rank_of: *mut i32,
        microbatch_of: *mut i32,
        summary: *mut odc_plan_summary,
    ) -> odc_status;
    pub fn odc_plan_window(
        request: *const odc_window_request,
        minibatch_of: *mut i32,
        rank_of: *mut i32,
        microbatch_of: *mut i32,
        summary: *mut odc_window_summary,
    ) -> odc_status;
    pub fn odc_plan_cost(model: *const c_char, a: *mut f64, b: *mut f64) -> odc_status;

    pub fn odc_version() -> u32;
    pub fn odc_build() -> *const c_char;
    pub fn odc_status_string(status: i32) -> *const c_char;
    pub fn odc_last_error() -> *const c_char;
    pub fn odc_get_transport(index: usize, out: *mut odc_transport) -> odc_status;
    pub fn odc_get_setting(index: usize, out: *mut odc_setting) -> odc_status;
    pub fn odc_get_topology(file: *const c_char, json: *mut *const c_char, xml: *mut *const c_char) -> odc_status;
    pub fn odc_get_route(context: *const odc_context, rank: i32, memory: i32, out: *mut odc_route) -> odc_status;
}
