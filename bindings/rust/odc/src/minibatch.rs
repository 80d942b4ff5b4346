// SPDX-License-Identifier: Apache-2.0
//! A minibatch and its phases.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;

use odc_sys as sys;

use crate::context::Context;
use crate::element::{Element, Gradient, GradientHalf, ParameterHalf};
use crate::error::{check, Error, Failed};
use crate::operation::Operation;
use crate::shard::{Description, Gpu, Host, Memory, Shard, Slice};
use crate::statistics::{PeerStats, Reduction, Route, Stats};
use crate::text::c_string;

/// The phase between sync and publish: slices are this rank's to read and write.
#[derive(Debug)]
pub enum Owned {}

/// The phase in which some shards are published, each for `'s`, and the slices of the others are still this rank's.
#[derive(Debug)]
pub struct Opening<'s>(PhantomData<&'s mut ()>);

/// The phase between publish and sync: all shards are published, so peers read the slices and add to the accumulators.
#[derive(Debug)]
pub enum Published {}

mod sealed {
    pub trait Phase {}
    impl Phase for super::Owned {}
    impl Phase for super::Opening<'_> {}
    impl Phase for super::Published {}
}

/// [`Owned`] or [`Opening`]: there are slices that are this rank's.
pub trait Owning: sealed::Phase {}
impl Owning for Owned {}
impl Owning for Opening<'_> {}

/// [`Opening`] or [`Published`]: there are shards that can be gathered and added to.
pub trait Open: sealed::Phase {}
impl Open for Opening<'_> {}
impl Open for Published {}

/// The running minibatch of a context, in a phase: what can be called is what the contract allows in it.
///
/// ```text
/// begin ─► Owned ── publish ──────────────────────────► Published ── sync ─► Owned, of the next minibatch
///            └───── publish_each ─► Opening ── publish_rest ─┘
/// ```
///
/// There is one per context. A call that ends a phase takes the minibatch by value, so no view of a slice outlives the
/// phase it may be used in; if it fails it gives the minibatch back, see [`Failed`].
///
/// Calls that odc.h lets run at once (gathers, additions, waits) take `&self`, and may be made by several threads; all
/// others take `&mut self` or `self`, because they run alone.
///
/// A slice cannot be written while it is published, as peers read it then:
///
/// ```compile_fail,E0505
/// # use odc::{Config, Context, Description};
/// # fn main() -> Result<(), odc::Error> {
/// # let mut context = Context::join(Config::new())?;
/// let mut owned = context.begin()?;
/// let mut shard = owned.register::<f32, f32>(&Description::new("layer.0", 1000))?;
/// let slice = owned.slice_mut(&mut shard)?;
/// let open = owned.publish()?; // `slice` is still in use
/// slice.parameters.fill(1.0);
/// # Ok(())
/// # }
/// ```
///
/// and after the publish there is no way to one:
///
/// ```compile_fail,E0599
/// # use odc::{Config, Context, Description};
/// # fn main() -> Result<(), odc::Error> {
/// # let mut context = Context::join(Config::new())?;
/// # let mut owned = context.begin()?;
/// # let mut shard = owned.register::<f32, f32>(&Description::new("layer.0", 1000))?;
/// let open = owned.publish()?;
/// open.slice_mut(&mut shard)?; // not before the sync
/// # Ok(())
/// # }
/// ```
///
/// Nothing is gathered, or added to, before the publish:
///
/// ```compile_fail,E0599
/// # use odc::{Config, Context, Description};
/// # fn main() -> Result<(), odc::Error> {
/// # let mut context = Context::join(Config::new())?;
/// # let mut owned = context.begin()?;
/// # let mut shard = owned.register::<f32, f32>(&Description::new("layer.0", 1000))?;
/// owned.gather(&shard, &mut [0.0; 1000])?;
/// # Ok(())
/// # }
/// ```
///
/// nor, where shards are published one by one, while the slice is borrowed:
///
/// ```compile_fail,E0502
/// # use odc::{Config, Context, Description};
/// # fn main() -> Result<(), odc::Error> {
/// # let mut context = Context::join(Config::new())?;
/// # let mut owned = context.begin()?;
/// # let mut shard = owned.register::<f32, f32>(&Description::new("layer.0", 1000))?;
/// let opening = owned.publish_each();
/// let slice = opening.slice_mut(&mut shard)?;
/// opening.scatter_add(&shard, &[1.0; 1000])?;
/// slice.parameters.fill(1.0);
/// # Ok(())
/// # }
/// ```
///
/// or after it is published:
///
/// ```compile_fail,E0499
/// # use odc::{Config, Context, Description};
/// # fn main() -> Result<(), odc::Error> {
/// # let mut context = Context::join(Config::new())?;
/// # let mut owned = context.begin()?;
/// # let mut shard = owned.register::<f32, f32>(&Description::new("layer.0", 1000))?;
/// let mut opening = owned.publish_each();
/// opening.publish(&mut shard)?;
/// opening.slice_mut(&mut shard)?; // published for as long as the phase lasts
/// # Ok(())
/// # }
/// ```
///
/// Nothing runs concurrently with sync:
///
/// ```compile_fail,E0505
/// # use odc::{Config, Context, Description};
/// # fn main() -> Result<(), odc::Error> {
/// # let mut context = Context::join(Config::new())?;
/// # let mut owned = context.begin()?;
/// # let shard = owned.register::<f32, f32>(&Description::new("layer.0", 1000))?;
/// let open = owned.publish()?;
/// std::thread::scope(|threads| {
///     threads.spawn(|| open.scatter_add(&shard, &[1.0; 1000]));
///     open.sync();
/// });
/// # Ok(())
/// # }
/// ```
///
/// and a reduction only where nothing is published:
///
/// ```compile_fail,E0599
/// # use odc::{Config, Context, Reduction};
/// # fn main() -> Result<(), odc::Error> {
/// # let mut context = Context::join(Config::new())?;
/// let mut open = context.begin()?.publish()?;
/// open.all_reduce(&mut [1.0], Reduction::Sum)?; // let the values ride on sync_reduce
/// # Ok(())
/// # }
/// ```
pub struct Minibatch<'c, Phase> {
    pub(crate) context: &'c Context,
    phase: PhantomData<Phase>,
}

impl<Phase> std::fmt::Debug for Minibatch<'_, Phase> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let phase = std::any::type_name::<Phase>();
        let name = phase.rsplit("::").next().unwrap_or(phase);
        write!(f, "Minibatch({}, {} of {:?})", self.number(), name, self.context)
    }
}

impl<'c> Minibatch<'c, Owned> {
    /// Who calls this has the context for as long as `'c`.
    pub(crate) fn new(context: &'c Context) -> Self {
        Minibatch { context, phase: PhantomData }
    }

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

    /// To publish shards one by one, so that peers can begin with some while this rank still writes the others.
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

    /// Gives a shard's memory back; local. Its name may be used again in a later minibatch. GPUs must be done with it.
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

impl<'c, 's> Minibatch<'c, Opening<'s>> {
    /// Publishes one shard, for as long as this phase lasts; it can be gathered and added to then, by what this returns.
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

impl<'c, Phase: Owning> Minibatch<'c, Phase> {
    /// Allocates this rank's slice (zeros) and announces the shard; waits for nobody. All listed ranks register the same
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

    /// The first half of a gather: waits for no publish. The buffer is the library's until [`Operation::wait`] gives it
    /// back, or, if the operation is dropped, until the sync.
    ///
    /// It is given by value, because a borrow would end when an operation is forgotten, and the library would still write.
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

impl<'c, Phase> Minibatch<'c, Phase> {
    /// Its number, from 0; never wraps.
    pub fn number(&self) -> u64 {
        self.context.state.minibatch.load(Relaxed)
    }

    /// 0..size-1.
    pub fn rank(&self) -> i32 {
        self.context.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> i32 {
        self.context.size()
    }

    /// Where the time went, since the context joined.
    pub fn stats(&mut self) -> Result<Stats, Error> {
        let mut stats = sys::odc_stats::default();
        // SAFETY: `stats` is sized.
        check(unsafe { sys::odc_get_stats(self.context.handle(), &mut stats) })?;
        Ok(Stats::from_c(&stats))
    }

    /// What this rank waited for another.
    pub fn peer_stats(&mut self, rank: i32) -> Result<PeerStats, Error> {
        let mut stats = sys::odc_peer_stats::default();
        // SAFETY: `stats` is sized.
        check(unsafe { sys::odc_get_peer_stats(self.context.handle(), rank, &mut stats) })?;
        Ok(PeerStats::from_c(&stats))
    }

    /// The path to a rank's host memory, and why it was chosen.
    pub fn route(&mut self, rank: i32) -> Result<Route, Error> {
        self.route_to(rank, sys::ODC_HOST_MEMORY)
    }

    /// The path to a rank's GPU memory, and why it was chosen.
    pub fn route_to_gpu(&mut self, rank: i32) -> Result<Route, Error> {
        self.route_to(rank, sys::ODC_GPU_MEMORY)
    }

    fn route_to(&mut self, rank: i32, memory: sys::odc_memory) -> Result<Route, Error> {
        let mut route = sys::odc_route::default();
        // SAFETY: `route` is sized; its strings live as long as the context.
        unsafe {
            check(sys::odc_get_route(self.context.handle(), rank, memory, &mut route))?;
            Ok(Route::from_c(&route))
        }
    }

    /// Ends every rank's waits with `text`, as [`Error::Aborted`].
    pub fn abort(&mut self, text: &str) -> Result<(), Error> {
        let text = c_string(text, "the text of abort")?;
        // SAFETY: `text` ends with a NUL.
        check(unsafe { sys::odc_abort(self.context.handle(), text.as_ptr()) })
    }

    /// Leaves the job, waiting for nobody; slices stay. Later calls say that this rank has left. Dropping the context does
    /// it, too.
    pub fn shutdown(&mut self) -> Result<(), Error> {
        // SAFETY: the handle is valid.
        check(unsafe { sys::odc_shutdown(self.context.handle()) })
    }

    pub(crate) fn own<P: ParameterHalf, G: GradientHalf, M: Memory>(
        &self,
        shard: &Shard<'c, P, G, M>,
    ) -> Result<(), Error> {
        if std::ptr::eq(shard.context, self.context) {
            return Ok(());
        }
        Err(Error::Argument(format!("shard \"{}\" is of another context than the minibatch", shard.name())))
    }

    /// Whatever is not refused before anything is published may have published something.
    fn note_publish(&self, status: sys::odc_status) {
        if matches!(status, sys::ODC_ERROR_ARGUMENT | sys::ODC_ERROR_PHASE | sys::ODC_ERROR_UNSUPPORTED) {
            return;
        }
        self.context.state.opened.store(true, Relaxed);
        if status != sys::ODC_OK {
            self.context.state.halfway.store(true, Relaxed);
        }
    }

    /// Of a phase with slices of this rank's.
    fn end(self, status: sys::odc_status) -> Result<Minibatch<'c, Published>, Failed<Self>> {
        self.note_publish(status);
        match check(status) {
            Ok(()) => Ok(self.into()),
            Err(error) => Err(Failed { error, back: self }),
        }
    }

    fn into<Next>(self) -> Minibatch<'c, Next> {
        Minibatch { context: self.context, phase: PhantomData }
    }
}

type OrBack<'s, S> = Result<&'s S, Failed<&'s mut S>>;

/// A stream of CUDA's (`CUstream`, `cudaStream_t`); NULL is the legacy default stream.
pub type Stream = *mut std::ffi::c_void;
