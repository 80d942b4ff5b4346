// SPDX-License-Identifier: Apache-2.0
//! Gathers and additions that are started and waited for.

use std::mem::ManuallyDrop;
use std::os::raw::c_void;

use odc_sys as sys;

use crate::context::Context;
use crate::element::Element;
use crate::error::{check, error_of, is_job_error, take_up_panic, Error, Failed};

/// A started gather or addition. It cannot outlive the phase:
///
/// ```compile_fail,E0505
/// # use odc::{Config, Context, Description};
/// # fn main() -> Result<(), odc::Error> {
/// # let mut context = Context::join(Config::new())?;
/// # let mut owned = context.begin()?;
/// # let shard = owned.register::<f32, f32>(&Description::new("layer.0", 1000))?;
/// let open = owned.publish()?;
/// let operation = open.gather_start(&shard, vec![0.0; 1000])?;
/// open.sync()?;
/// operation.wait()?; // the sync has waited for it
/// # Ok(())
/// # }
/// ```
pub struct Operation<'m, T: Element> {
    context: &'m Context,
    number: u64,
    buffer: Option<Buffer<T>>,
}

impl<'m, T: Element> Operation<'m, T> {
    pub(crate) fn start(
        context: &'m Context,
        allowed: Result<(), Error>,
        full: Vec<T>,
        start: impl FnOnce(*mut c_void, u64, &mut u64) -> sys::odc_status,
    ) -> Result<Self, Failed<Vec<T>>> {
        if let Err(error) = allowed {
            return Err(Failed { error, back: full });
        }
        let buffer = Buffer::new(full);
        let mut number = 0;
        let status = start(buffer.start.cast(), buffer.numel as u64, &mut number);
        if status != sys::ODC_OK {
            return Err(Failed { error: error_of(status), back: buffer.take() });
        }
        let operation = Operation { context, number, buffer: Some(buffer) };
        take_up_panic(); // which drops the operation
        Ok(operation)
    }

    /// Completes it, and returns the buffer. If it fails it is given back and can be waited for
    /// again; after a job error it is gone.
    pub fn wait(mut self) -> Result<Vec<T>, Failed<Option<Self>>> {
        // SAFETY: the context is valid, and waits may run at once.
        let status = unsafe { sys::odc_wait(self.context.handle(), self.number) };
        let ended = status == sys::ODC_OK || is_job_error(status);
        let buffer = if ended { self.buffer.take() } else { None };
        match (check(status), buffer) {
            (Ok(()), Some(buffer)) => Ok(buffer.take()),
            (Ok(()), None) => unreachable!("it is taken where the wait went well"),
            (Err(error), Some(_)) => Err(Failed { error, back: None }),
            (Err(error), None) => Err(Failed { error, back: Some(self) }),
        }
    }
}

impl<T: Element> std::fmt::Debug for Operation<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Operation({} of {:?})", self.number, self.context)
    }
}

impl<T: Element> Drop for Operation<'_, T> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.context.abandon(Box::new(buffer));
        }
    }
}

/// A vector in its parts: while the library writes into it there may be no reference to it.
struct Buffer<T> {
    start: *mut T,
    numel: usize,
    capacity: usize,
}

// SAFETY: it owns its elements, as the vector does.
unsafe impl<T: Send> Send for Buffer<T> {}
// SAFETY: nothing can be done with `&Buffer`.
unsafe impl<T: Sync> Sync for Buffer<T> {}

impl<T> Buffer<T> {
    fn new(vector: Vec<T>) -> Self {
        let mut vector = ManuallyDrop::new(vector);
        Buffer { start: vector.as_mut_ptr(), numel: vector.len(), capacity: vector.capacity() }
    }

    fn take(self) -> Vec<T> {
        let parts = ManuallyDrop::new(self);
        // SAFETY: the parts of a vector, which are used once.
        unsafe { Vec::from_raw_parts(parts.start, parts.numel, parts.capacity) }
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: as in `take`.
        drop(unsafe { Vec::from_raw_parts(self.start, self.numel, self.capacity) });
    }
}
