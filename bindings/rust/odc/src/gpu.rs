// SPDX-License-Identifier: Apache-2.0
//! Gathers and additions of shards in GPU memory.
//!
//! They are unsafe: nothing here can know that an address is of enough GPU memory, that a stream lives, or that what is
//! enqueued on other streams keeps to the contract.

use odc_sys as sys;

use crate::context::Context;
use crate::element::{Element, Gradient, GradientHalf, ParameterHalf};
use crate::error::{check, is_job_error, Error, Failed};
use crate::phases::{Minibatch, Open, Stream};
use crate::shard::{Gpu, Shard};

impl<'c, Phase: Open> Minibatch<'c, Phase> {
    /// Fills `numel` elements of GPU memory with the whole shard, when `stream` reaches it. The host waits for owners whose
    /// streams have not reached their publishes, so nothing before them may need what comes after the call.
    ///
    /// # Safety
    /// `stream` is a stream of the context's GPU that is not being captured, or NULL. `full` has `numel` elements of that
    /// GPU's memory, which nothing else uses until the stream has passed the call.
    pub unsafe fn gather_on<P: Element, G: GradientHalf>(
        &self,
        shard: &Shard<'c, P, G, Gpu>,
        full: *mut P,
        numel: usize,
        stream: Stream,
    ) -> Result<(), Error> {
        self.own(shard)?;
        // SAFETY: the caller vouches for buffer and stream.
        check(unsafe { sys::odc_gather(shard.handle.as_ptr(), full.cast(), numel as u64, stream) })
    }

    /// Adds `numel` elements of GPU memory into all owners' accumulators, when `stream` reaches it; the host waits as in
    /// [`gather_on`](Self::gather_on).
    ///
    /// # Safety
    /// As [`gather_on`](Self::gather_on); the elements are not written until the stream has passed the call.
    pub unsafe fn scatter_add_on<P: ParameterHalf, G: Gradient>(
        &self,
        shard: &Shard<'c, P, G, Gpu>,
        full: *const G,
        numel: usize,
        stream: Stream,
    ) -> Result<(), Error> {
        self.own(shard)?;
        // SAFETY: the caller vouches for buffer and stream.
        check(unsafe { sys::odc_scatter_add(shard.handle.as_ptr(), full.cast(), numel as u64, stream) })
    }

    /// The first half of [`gather_on`](Self::gather_on): waits for no publish.
    ///
    /// # Safety
    /// As [`gather_on`](Self::gather_on), and until [`GpuOperation::wait`] or the sync has returned.
    pub unsafe fn gather_start_on<'m, P: Element, G: GradientHalf>(
        &'m self,
        shard: &Shard<'c, P, G, Gpu>,
        full: *mut P,
        numel: usize,
        stream: Stream,
    ) -> Result<GpuOperation<'m>, Error> {
        self.own(shard)?;
        let mut number = 0;
        // SAFETY: the caller vouches for buffer and stream.
        check(unsafe { sys::odc_gather_start(shard.handle.as_ptr(), full.cast(), numel as u64, stream, &mut number) })?;
        Ok(GpuOperation { context: self.context, number })
    }

    /// The first half of [`scatter_add_on`](Self::scatter_add_on): waits for no publish.
    ///
    /// # Safety
    /// As [`scatter_add_on`](Self::scatter_add_on), and until [`GpuOperation::wait`] or the sync has returned.
    pub unsafe fn scatter_add_start_on<'m, P: ParameterHalf, G: Gradient>(
        &'m self,
        shard: &Shard<'c, P, G, Gpu>,
        full: *const G,
        numel: usize,
        stream: Stream,
    ) -> Result<GpuOperation<'m>, Error> {
        self.own(shard)?;
        let mut number = 0;
        // SAFETY: the caller vouches for buffer and stream.
        check(unsafe {
            sys::odc_scatter_add_start(shard.handle.as_ptr(), full.cast(), numel as u64, stream, &mut number)
        })?;
        Ok(GpuOperation { context: self.context, number })
    }
}

/// A started gather of, or addition to, a shard in GPU memory.
#[derive(Debug)]
pub struct GpuOperation<'m> {
    context: &'m Context,
    number: u64,
}

impl GpuOperation<'_> {
    /// Completes it: its work is on the stream then. If it fails it is given back and can be waited
    /// for again.
    pub fn wait(self) -> Result<(), Failed<Option<Self>>> {
        // SAFETY: the context is valid, and waits may run at once.
        let status = unsafe { sys::odc_wait(self.context.handle(), self.number) };
        check(status).map_err(|error| Failed { error, back: Some(self).filter(|_| !is_job_error(status)) })
    }
}
