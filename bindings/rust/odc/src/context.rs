// SPDX-License-Identifier: Apache-2.0
//! One rank's membership in one job.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use odc_sys as sys;

use crate::config::{Callbacks, Config};
use crate::error::{error_of, take_up_panic, Error};
use crate::library::check_library;

/// One rank's membership in one job. Dropping it leaves the job and frees everything; if a panic drops it, all ranks'
/// waits end with [`Error::Aborted`].
///
/// Everything is done by the [`Minibatch`](crate::Minibatch) that [`begin`](Context::begin) returns. Shards and views
/// cannot outlive the context:
///
/// ```compile_fail,E0597
/// use odc::{Config, Context, Shard};
/// # fn main() -> Result<(), odc::Error> {
/// let shard: Shard<f32, f32>;
/// {
///     let mut context = Context::join(Config::new())?;
///     shard = context.begin()?.register(&odc::Description::new("layer.0", 1000))?;
/// }
/// println!("{:?}", shard.parameters()); // the memory is gone
/// # Ok(())
/// # }
/// ```
///
/// A context may be handed to another thread, and several may be in a process; a child made by `fork` must not use it,
/// and has no slices.
pub struct Context {
    handle: NonNull<sys::odc_context>,
    rank: i32,
    size: i32,
    pub(crate) state: State,
    _callbacks: Callbacks, // freed after odc_destroy, which Drop calls
}

/// State of the phases that their types do not hold. Relaxed: a writer has exclusive access to the
/// minibatch.
#[derive(Default)]
pub(crate) struct State {
    /// The number of the running minibatch.
    pub minibatch: AtomicU64,
    /// A slice of the current minibatch is published, or may be after a failed publish.
    pub opened: AtomicBool,
    /// A publish of the current minibatch failed, perhaps halfway, so its slices may not be this
    /// rank's any more.
    pub halfway: AtomicBool,
    /// Registered shards.
    pub registered: AtomicUsize,
    /// Those of them that are published in the current minibatch.
    pub published: AtomicUsize,
    /// Buffers of operations that were not waited for: in use by the library until the next sync.
    pub abandoned: Mutex<Vec<Box<dyn Send>>>,
}

// SAFETY: odc.h binds a context to no thread. What is called through `&Context` reads constants only.
unsafe impl Send for Context {}
// SAFETY: see above.
unsafe impl Sync for Context {}

impl Context {
    /// Joins the job and waits for all its ranks. Refuses a libodc of another binary interface (see
    /// [`check_library`]).
    pub fn join(config: Config<'_>) -> Result<Context, Error> {
        check_library()?;
        let mut handle = std::ptr::null_mut();
        let callbacks = config.join(|config| {
            // SAFETY: `config` and what it points to live through the call.
            match unsafe { sys::odc_init(config, &mut handle) } {
                sys::ODC_OK => Ok(()),
                status => Err(error_of(status)),
            }
        })?;
        let handle = NonNull::new(handle).expect("odc_init returned a context");
        // SAFETY: the handle is valid.
        let (rank, size) = unsafe { (sys::odc_rank(handle.as_ptr()), sys::odc_size(handle.as_ptr())) };
        let context = Context { handle, rank, size, state: State::default(), _callbacks: callbacks };
        take_up_panic(); // which drops the context
        Ok(context)
    }

    /// 0..size-1.
    pub fn rank(&self) -> i32 {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> i32 {
        self.size
    }

    pub(crate) fn handle(&self) -> *mut sys::odc_context {
        self.handle.as_ptr()
    }

    pub(crate) fn abandon(&self, buffer: Box<dyn Send>) {
        self.state.abandoned.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }

    /// Called after a sync.
    pub(crate) fn turn(&self) {
        self.state.abandoned.lock().unwrap_or_else(PoisonError::into_inner).clear();
        // SAFETY: the handle is valid, and whoever syncs has it alone.
        self.state.minibatch.store(unsafe { sys::odc_minibatch(self.handle()) }, Relaxed);
        self.state.published.store(0, Relaxed);
        self.state.opened.store(false, Relaxed);
        self.state.halfway.store(false, Relaxed);
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context(rank {} of {})", self.rank, self.size)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, and nothing that could use it is left. The library does not
        // use buffers and callbacks that are freed after this.
        unsafe {
            if std::thread::panicking() {
                sys::odc_abort(self.handle(), b"a thread of it panicked\0".as_ptr().cast());
            }
            sys::odc_destroy(self.handle());
        }
    }
}
