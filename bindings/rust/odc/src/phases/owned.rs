// SPDX-License-Identifier: Apache-2.0
//! Between sync and publish: slices are this rank's.

use std::sync::atomic::Ordering::Relaxed;

use odc_sys as sys;

use super::minibatch::{Minibatch, Opening, Owned, Owning, Published, Stream};
use crate::context::Context;
use crate::element::{GradientHalf, ParameterHalf};
use crate::error::{check, Error, Failed};
use crate::shard::{Description, Gpu, Host, Memory, Shard, Slice};
use crate::statistics::Reduction;

impl Context {
    /// Begins the first minibatch. It can be called again when the returned value is gone, unless
    /// that was dropped in the middle of a minibatch: peers may be using the slices until the sync.
    ///
    /// ```compile_fail,E0499
    /// # fn main() -> Result<(), odc::Error> {
    /// let mut context = odc::Context::join(odc::Config::new())?;
    /// let one = context.begin()?;
    /// let other = context.begin()?; // there is one minibatch at a time
    /// one.publish()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn begin(&mut self) -> Result<Minibatch<'_, Owned>, Error> {
        if self.state.opened.load(Relaxed) {
            return Err(Error::Phase(format!(
                "Context::begin: minibatch {} of rank {} was dropped between publish and sync, so peers may be using its \
                 slices; finish each minibatch by Minibatch::sync",
                self.state.minibatch.load(Relaxed),
                self.rank()
            )));
        }
        Ok(Minibatch::new(self))
    }
}

impl<'c> Minibatch<'c, Owned> {
    /// "My slices hold this minibatch's parameters": publishes all shards, which opens their accumulators at zero. Waits
    /// for nobody. For shards in GPU memory it takes effect on the legacy default stream.
    pub fn publish(self) -> Result<Minibatch<'c, Published>, Failed<Self>> {
        // SAFETY: NULL is no stream that could be gone.
        unsafe { self.publish_on(std::ptr::null_mut()) }
    }

    /// As [`publish`](Self::publish), for a context with shards in GPU memory: it takes effect when `stream`, a
    /// `CUstream` or `cudaStream_t` of that GPU, reaches it.
    ///
    /// # Safety
    /// `stream` is a stream of the context's GPU, or NULL.
    pub unsafe fn publish_on(self, stream: Stream) -> Result<Minibatch<'c, Published>, Failed<Self>> {
        // SAFETY: nobody else has this minibatch; the caller vouches for the stream.
        let status = unsafe { sys::odc_publish_all(self.context.handle(), stream) };
        self.end(status)
    }

    /// Publishes shards one by one, so that peers can use some while this rank still writes the
    /// others.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), odc::Error> {
    /// # let mut context = odc::Context::join(odc::Config::new())?;
    /// # let mut owned = context.begin()?;
    /// # let mut layers = vec![owned.register::<f32, f32>(&odc::Description::new("layer.0", 1000))?];
    /// # let step = |parameters: &mut [f32], gradients: &mut [f32]| ();
    /// let mut opening = owned.publish_each();
    /// for layer in &mut layers {
    ///     let slice = opening.slice_mut(layer)?;
    ///     step(slice.parameters, slice.gradients);
    ///     opening.publish(layer)?; // gives back `&Shard`, for gathers of this phase
    /// }
    /// let open = opening.publish_rest()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn publish_each<'s>(self) -> Minibatch<'c, Opening<'s>> {
        self.into()
    }

    /// Combines up to 64 values over all ranks; all get the same bits. After [`Error::Interrupted`] it is to be called
    /// again, with the same values.
    pub fn all_reduce(&mut self, values: &mut [f64], reduction: Reduction) -> Result<(), Error> {
        let op = reduction as i32;
        // SAFETY: nobody else has this minibatch; the buffer comes with its length.
        check(unsafe { sys::odc_all_reduce(self.context.handle(), values.as_mut_ptr(), values.len(), op) })
    }

    /// Frees a shard's memory; local. Its name may be used again in a later minibatch. GPUs must be
    /// done with it.
    pub fn release<P: ParameterHalf, G: GradientHalf, M: Memory>(
        &mut self,
        shard: Shard<'c, P, G, M>,
    ) -> Result<(), Failed<Shard<'c, P, G, M>>> {
        // SAFETY: the handle is valid, and no view of the shard is left, as it was given by value.
        let released = self.own(&shard).and_then(|()| check(unsafe { sys::odc_release_shard(shard.handle.as_ptr()) }));
        match released {
            Ok(()) => {
                self.context.state.registered.fetch_sub(1, Relaxed);
                Ok(())
            }
            Err(error) => Err(Failed { error, back: shard }),
        }
    }
}

impl<'c, Phase: Owning> Minibatch<'c, Phase> {
    /// Allocates this rank's slice (zeros) and lists the shard for the other ranks; waits for nobody. All listed ranks register the same
    /// description in the same minibatch.
    pub fn register<P: ParameterHalf, G: GradientHalf>(
        &mut self,
        description: &Description,
    ) -> Result<Shard<'c, P, G>, Error> {
        Ok(self.add_shards::<P, G, Host>(std::slice::from_ref(description))?.remove(0))
    }

    /// All of them or none, in one region of memory.
    pub fn register_all<P: ParameterHalf, G: GradientHalf>(
        &mut self,
        descriptions: &[Description],
    ) -> Result<Vec<Shard<'c, P, G>>, Error> {
        self.add_shards(descriptions)
    }

    /// As [`register_all`](Self::register_all), in the memory of the context's GPU.
    pub fn register_all_on_gpu<P: ParameterHalf, G: GradientHalf>(
        &mut self,
        descriptions: &[Description],
    ) -> Result<Vec<Shard<'c, P, G, Gpu>>, Error> {
        self.add_shards(descriptions)
    }

    fn add_shards<P: ParameterHalf, G: GradientHalf, M: Memory>(
        &mut self,
        descriptions: &[Description],
    ) -> Result<Vec<Shard<'c, P, G, M>>, Error> {
        let shards = Shard::register(self.context, descriptions)?;
        self.context.state.registered.fetch_add(shards.len(), Relaxed);
        Ok(shards)
    }

    /// This rank's part of a shard, to read the gradients and write the parameters.
    pub fn slice_mut<'a, P: ParameterHalf, G: GradientHalf>(
        &'a self,
        shard: &'a mut Shard<'c, P, G>,
    ) -> Result<Slice<'a, P, G>, Error> {
        self.own(shard)?;
        if self.context.state.halfway.load(Relaxed) {
            return Err(Error::Phase(format!(
                "slice_mut: a publish of minibatch {} failed, perhaps halfway, so peers may be using the slice of shard \
                 \"{}\" until the next sync; Shard::parameters can still be read",
                self.number(),
                shard.name()
            )));
        }
        // SAFETY: in these phases a shard that can be borrowed mutably is not published: `Opening` keeps those that are
        // borrowed, and this phase does not end before the view.
        Ok(unsafe { shard.slice() })
    }
}
