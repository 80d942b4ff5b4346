// SPDX-License-Identifier: Apache-2.0
//! Between publish and sync: shards are gathered and added to.

use odc_sys as sys;

use super::minibatch::{Minibatch, Open, Owned, Published};
use crate::element::{Element, Gradient, GradientHalf, ParameterHalf};
use crate::error::{check, Error, Failed};
use crate::operation::Operation;
use crate::shard::Shard;
use crate::statistics::Reduction;

impl<'c, Phase: Open> Minibatch<'c, Phase> {
    /// Fills `full` with the whole shard. Waits for each owner's publish and for nothing else.
    pub fn gather<P: Element, G: GradientHalf>(&self, shard: &Shard<'c, P, G>, full: &mut [P]) -> Result<(), Error> {
        self.own(shard)?;
        let (start, numel) = (full.as_mut_ptr().cast(), full.len() as u64);
        // SAFETY: handle and buffer are valid, the buffer comes with its length and is of the shard's type.
        check(unsafe { sys::odc_gather(shard.handle.as_ptr(), start, numel, std::ptr::null_mut()) })
    }

    /// Adds `full` into all owners' accumulators, each element exactly once; waits as [`gather`](Self::gather), before it
    /// adds anything.
    pub fn scatter_add<P: ParameterHalf, G: Gradient>(&self, shard: &Shard<'c, P, G>, full: &[G]) -> Result<(), Error> {
        self.own(shard)?;
        let (start, numel) = (full.as_ptr().cast(), full.len() as u64);
        // SAFETY: as in `gather`.
        check(unsafe { sys::odc_scatter_add(shard.handle.as_ptr(), start, numel, std::ptr::null_mut()) })
    }

    /// Starts a gather without waiting for a publish. The buffer is in use by the library until
    /// [`Operation::wait`] returns it, or, if the operation is dropped, until the sync.
    ///
    /// It is passed by value: a borrow would end if the operation is forgotten, while the library
    /// still writes.
    pub fn gather_start<'m, P: Element, G: GradientHalf>(
        &'m self,
        shard: &Shard<'c, P, G>,
        full: Vec<P>,
    ) -> Result<Operation<'m, P>, Failed<Vec<P>>> {
        Operation::start(self.context, self.own(shard), full, |start, numel, number| {
            // SAFETY: the operation keeps the buffer, which is of the shard's type, until the library is done with it.
            unsafe { sys::odc_gather_start(shard.handle.as_ptr(), start, numel, std::ptr::null_mut(), number) }
        })
    }

    /// The first half of an addition, as [`gather_start`](Self::gather_start).
    pub fn scatter_add_start<'m, P: ParameterHalf, G: Gradient>(
        &'m self,
        shard: &Shard<'c, P, G>,
        full: Vec<G>,
    ) -> Result<Operation<'m, G>, Failed<Vec<G>>> {
        Operation::start(self.context, self.own(shard), full, |start, numel, number| {
            // SAFETY: as in `gather_start`.
            unsafe { sys::odc_scatter_add_start(shard.handle.as_ptr(), start, numel, std::ptr::null_mut(), number) }
        })
    }

    /// "I add nothing more to the shard in this minibatch": lets what this host's ranks have added to slices of other hosts be
    /// sent before the sync. No operation may be under way.
    pub fn finish<P: ParameterHalf, G: Gradient>(&mut self, shard: &Shard<'c, P, G>) -> Result<(), Error> {
        self.own(shard)?;
        // SAFETY: the handle is valid, and nobody else uses this minibatch during the call.
        check(unsafe { sys::odc_finish(shard.handle.as_ptr(), std::ptr::null_mut()) })
    }
}

impl<'c> Minibatch<'c, Published> {
    /// The one wait for all: completes this rank's operations, arrives, and returns once all ranks of the job have. Then
    /// gradients are final, elements that nobody added to are zero, and the slices are this rank's until it publishes.
    ///
    /// After [`Error::Interrupted`] it is to be called again.
    pub fn sync(self) -> Result<Minibatch<'c, Owned>, Failed<Self>> {
        self.sync_reduce(&mut [], Reduction::Sum)
    }

    /// The same, with the values of [`all_reduce`](Minibatch::all_reduce) riding along.
    pub fn sync_reduce(self, values: &mut [f64], reduction: Reduction) -> Result<Minibatch<'c, Owned>, Failed<Self>> {
        let op = reduction as i32;
        // SAFETY: nobody else has this minibatch; the buffer comes with its length.
        let status =
            unsafe { sys::odc_minibatch_sync_reduce(self.context.handle(), values.as_mut_ptr(), values.len(), op) };
        if status == sys::ODC_OK {
            self.context.turn();
        }
        match check(status) {
            Ok(()) => Ok(self.into()),
            Err(error) => Err(Failed { error, back: self }),
        }
    }
}
