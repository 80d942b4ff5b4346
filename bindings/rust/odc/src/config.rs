// SPDX-License-Identifier: Apache-2.0
//! How a rank joins a job, and the library's callbacks.

use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use odc_sys as sys;

use crate::error::{keep_panic, Error};
use crate::text::c_string;

type BoxedError = Box<dyn std::error::Error + Send + Sync>;
type AllGather<'a> = dyn FnMut(&[u8], &mut [u8]) -> Result<(), BoxedError> + 'a;

/// How a rank joins a job. Unset fields come from the environment (`odc info --settings`): rank and
/// size from `odc run`, torchrun, mpirun or Slurm.
#[derive(Default)]
pub struct Config<'a> {
    place: Option<(i32, i32)>,
    job: Option<String>,
    group: Option<String>,
    rendezvous: Option<String>,
    secret: Option<String>,
    timeout: Option<Duration>,
    host: Option<String>,
    device: Option<String>,
    all_gather: Option<Box<AllGather<'a>>>,
    interrupted: Option<Arc<Interrupted>>,
    log: Option<Arc<Log>>,
    log_level: Option<LogLevel>,
}

/// Behind one pointer, at a fixed address for as long as the context lives.
pub(crate) struct Interrupted(Box<dyn Fn() -> bool + Send + Sync>);

/// Likewise.
pub(crate) struct Log(Box<Tell>);
type Tell = dyn Fn(LogLevel, &str) + Send + Sync;

/// What C may ask or tell until the context is destroyed.
pub(crate) struct Callbacks {
    _interrupted: Option<Arc<Interrupted>>,
    _log: Option<Arc<Log>>,
}

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// The job has failed, and why.
    Error = sys::ODC_LOG_ERROR as isize,
    /// It goes on, but somebody should look.
    Warn = sys::ODC_LOG_WARN as isize,
    /// Joining, routes, leaving, and what a wait of seconds waits for.
    Info = sys::ODC_LOG_INFO as isize,
    /// Each route, registration and sync, and what is tried again.
    Debug = sys::ODC_LOG_DEBUG as isize,
    /// Each call that moves data.
    Trace = sys::ODC_LOG_TRACE as isize,
}

impl LogLevel {
    // A newer library may have finer ones.
    fn from_c(level: i32) -> LogLevel {
        match level {
            sys::ODC_LOG_ERROR => LogLevel::Error,
            sys::ODC_LOG_WARN => LogLevel::Warn,
            sys::ODC_LOG_INFO => LogLevel::Info,
            sys::ODC_LOG_DEBUG => LogLevel::Debug,
            _ => LogLevel::Trace,
        }
    }
}

impl<'a> Config<'a> {
    /// All from the environment.
    pub fn new() -> Self {
        Config::default()
    }

    /// This rank and the number of ranks.
    pub fn rank(mut self, rank: i32, size: i32) -> Self {
        self.place = Some((rank, size));
        self
    }

    /// Ranks of one host meet under this name; default: the launcher's job id.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.job = Some(name.into());
        self
    }

    /// Tells several contexts of one job apart ("actor", "critic").
    pub fn group(mut self, name: impl Into<String>) -> Self {
        self.group = Some(name.into());
        self
    }

    /// "host:port" or "\[v6\]:port" of rank 0; needs a secret.
    pub fn rendezvous(mut self, address: impl Into<String>) -> Self {
        self.rendezvous = Some(address.into());
        self
    }

    /// Shared by all ranks.
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// The deadline of every wait, in whole milliseconds; default: `ODC_TIMEOUT_MS`, or ten
    /// minutes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Identifies the host: ranks with equal text share memory; default: `ODC_HOST_ID`, or this
    /// machine.
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.host = Some(name.into());
        self
    }

    /// This rank's GPU for shards in GPU memory, such as "cuda:0"; default: `ODC_DEVICE`, or none.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// Ranks meet by this (MPI, a store) instead: it fills its second argument with every rank's first, in rank order.
    /// Collective; called in [`Context::join`](crate::Context::join) only, on its thread: once, with several hosts more
    /// often. Needs [`rank`](Config::rank).
    pub fn all_gather(mut self, gather: impl FnMut(&[u8], &mut [u8]) -> Result<(), BoxedError> + 'a) -> Self {
        self.all_gather = Some(Box::new(gather));
        self
    }

    /// Asked at least every 100 ms by a waiting call, on its thread: whether to end the wait, with
    /// [`Error::Interrupted`]. A panic in it ends the wait, too, and goes on in the caller. It must not end its thread
    /// otherwise (`pthread_exit`): Rust does not define what that does to its own frames.
    pub fn interrupted(mut self, ask: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.interrupted = Some(Arc::new(Interrupted(Box::new(ask))));
        self
    }

    /// Called with the lines of the log, which go to standard error otherwise, on threads that are in a call of the context.
    /// It must not call the library, nor end its thread (`pthread_exit`); a panic in it is dropped.
    pub fn log(mut self, tell: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        self.log = Some(Arc::new(Log(Box::new(tell))));
        self
    }

    /// Up to which level lines are made; else `ODC_LOG`'s, or `Warn`.
    pub fn log_level(mut self, level: LogLevel) -> Self {
        self.log_level = Some(level);
        self
    }

    /// Joins by `init`. Callbacks stored in the handle must live as long as it does.
    pub(crate) fn join(mut self, init: impl FnOnce(&sys::odc_config) -> Result<(), Error>) -> Result<Callbacks, Error> {
        let mut config = sys::odc_config::default();
        let text = |given: &Option<String>, what| given.as_ref().map(|text| c_string(text, what)).transpose();
        let job = text(&self.job, "job")?;
        let group = text(&self.group, "group")?;
        let rendezvous = text(&self.rendezvous, "rendezvous")?;
        let secret = text(&self.secret, "secret")?;
        let host = text(&self.host, "host")?;
        let device = text(&self.device, "device")?;
        config.job = pointer(&job);
        config.group = pointer(&group);
        config.rendezvous = pointer(&rendezvous);
        config.secret = pointer(&secret);
        config.host = pointer(&host);
        config.device = pointer(&device);
        config.timeout_ms = self.timeout.map_or(Ok(0), milliseconds)?;
        if let Some((rank, size)) = self.place {
            if size < 1 {
                return Err(Error::Argument(format!("a job of {} ranks was asked for; it has at least one", size)));
            }
            config.rank = rank;
            config.size = size;
        }
        let mut state =
            self.all_gather.take().map(|gather| GatherState { gather, size: config.size as usize, failed: None });
        if let Some(state) = &mut state {
            if self.place.is_none() {
                return Err(Error::Argument(
                    "all_gather needs Config::rank: rank and size are not known yet".to_string(),
                ));
            }
            config.all_gather = Some(call_all_gather);
            config.all_gather_arg = state as *mut GatherState<'_> as *mut c_void;
        }
        if let Some(ask) = &self.interrupted {
            config.interrupted = Some(call_interrupted);
            config.interrupted_arg = Arc::as_ptr(ask) as *mut c_void;
        }
        if let Some(log) = &self.log {
            config.log = Some(call_log);
            config.log_arg = Arc::as_ptr(log) as *mut c_void;
        }
        config.log_level = self.log_level.map_or(0, |level| level as i32);
        match (init(&config), state.and_then(|state| state.failed)) {
            (Ok(()), _) => Ok(Callbacks { _interrupted: self.interrupted, _log: self.log }),
            (Err(Error::Rendezvous(sentence)), Some(reason)) => {
                Err(Error::Rendezvous(format!("{}: {}", sentence, reason)))
            }
            (Err(error), _) => Err(error),
        }
    }
}

fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
}

// 0 would mean the default; the library limits long ones itself
fn milliseconds(timeout: Duration) -> Result<i64, Error> {
    match timeout.as_millis() {
        0 => Err(Error::Argument(format!("timeout is {:?}; it must be a millisecond or more", timeout))),
        milliseconds => Ok(i64::try_from(milliseconds).unwrap_or(i64::MAX)),
    }
}

struct GatherState<'a> {
    gather: Box<AllGather<'a>>,
    size: usize,
    failed: Option<BoxedError>,
}

unsafe extern "C" fn call_all_gather(arg: *mut c_void, mine: *const c_void, all: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: `arg` is the GatherState that outlives odc_init, which has one such call at a time; `mine` has `bytes` bytes
    // and `all` as many for each rank, which may be uninitialized until they are zeroed here.
    let (state, mine, all) = unsafe {
        let state = &mut *(arg as *mut GatherState<'_>);
        std::ptr::write_bytes(all as *mut u8, 0, bytes * state.size);
        let all = std::slice::from_raw_parts_mut(all as *mut u8, bytes * state.size);
        (state, std::slice::from_raw_parts(mine as *const u8, bytes), all)
    };
    match catch_unwind(AssertUnwindSafe(|| (state.gather)(mine, all))) {
        Ok(Ok(())) => 0,
        Ok(Err(reason)) => {
            state.failed = Some(reason);
            1
        }
        Err(panic) => {
            keep_panic(panic);
            1
        }
    }
}

unsafe extern "C" fn call_interrupted(arg: *mut c_void) -> c_int {
    // SAFETY: the context, or who is joining, owns it.
    let ask = unsafe { &*(arg as *const Interrupted) };
    match catch_unwind(AssertUnwindSafe(|| (ask.0)())) {
        Ok(answer) => answer as c_int,
        Err(panic) => {
            keep_panic(panic);
            1
        }
    }
}

unsafe extern "C" fn call_log(arg: *mut c_void, level: i32, line: *const c_char) {
    // SAFETY: the context, or who is joining, owns it; the line ends with a zero and lasts until this returns.
    let (log, line) = unsafe { (&*(arg as *const Log), CStr::from_ptr(line)) };
    let _ = catch_unwind(AssertUnwindSafe(|| (log.0)(LogLevel::from_c(level), &line.to_string_lossy())));
}
