// SPDX-License-Identifier: Apache-2.0
//! Shards are published one by one.

use std::sync::atomic::Ordering::Relaxed;

use odc_sys as sys;

use super::minibatch::{Minibatch, Opening, Published, Stream};
use crate::element::{GradientHalf, ParameterHalf};
use crate::error::{check, Failed};
use crate::shard::{Gpu, Memory, Shard};

type OrBack<'s, S> = Result<&'s S, Failed<&'s mut S>>;

impl<'c, 's> Minibatch<'c, Opening<'s>> {
    /// Publishes one shard for the rest of this phase, and returns the reference by which it can be
    /// gathered and added to.
    pub fn publish<P: ParameterHalf, G: GradientHalf, M: Memory>(
        &mut self,
        shard: &'s mut Shard<'c, P, G, M>,
    ) -> OrBack<'s, Shard<'c, P, G, M>> {
        self.publish_shard(shard, std::ptr::null_mut())
    }

    /// As [`publish`](Self::publish), when `stream` reaches it.
    ///
    /// # Safety
    /// `stream` is a stream of the context's GPU, or NULL.
    pub unsafe fn publish_on<P: ParameterHalf, G: GradientHalf>(
        &mut self,
        shard: &'s mut Shard<'c, P, G, Gpu>,
        stream: Stream,
    ) -> OrBack<'s, Shard<'c, P, G, Gpu>> {
        self.publish_shard(shard, stream)
    }

    fn publish_shard<P: ParameterHalf, G: GradientHalf, M: Memory>(
        &mut self,
        shard: &'s mut Shard<'c, P, G, M>,
        stream: Stream,
    ) -> OrBack<'s, Shard<'c, P, G, M>> {
        if let Err(error) = self.own(shard) {
            return Err(Failed { error, back: shard });
        }
        // SAFETY: the handle is valid; who calls with a stream vouches for it.
        let status = unsafe { sys::odc_publish(shard.handle.as_ptr(), stream) };
        self.note_publish(status);
        match check(status) {
            Ok(()) => {
                self.context.state.published.fetch_add(1, Relaxed);
                Ok(shard)
            }
            Err(error) => Err(Failed { error, back: shard }),
        }
    }

    /// Publishes the shards that are left, if there are any.
    pub fn publish_rest(self) -> Result<Minibatch<'c, Published>, Failed<Self>> {
        // SAFETY: NULL is no stream that could be gone.
        unsafe { self.publish_rest_on(std::ptr::null_mut()) }
    }

    /// As [`publish_rest`](Self::publish_rest), when `stream` reaches it.
    ///
    /// # Safety
    /// `stream` is a stream of the context's GPU, or NULL.
    pub unsafe fn publish_rest_on(self, stream: Stream) -> Result<Minibatch<'c, Published>, Failed<Self>> {
        let state = &self.context.state;
        if state.published.load(Relaxed) == state.registered.load(Relaxed) {
            return self.end(sys::ODC_OK); // to publish nothing is an error in C
        }
        // SAFETY: nobody else has this minibatch; the caller vouches for the stream.
        let status = unsafe { sys::odc_publish_all(self.context.handle(), stream) };
        self.end(status)
    }
}
