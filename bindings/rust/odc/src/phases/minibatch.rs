// SPDX-License-Identifier: Apache-2.0
//! The current minibatch, its phases, and the calls allowed in each of them.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;

use odc_sys as sys;

use crate::context::Context;
use crate::element::{GradientHalf, ParameterHalf};
use crate::error::{check, Error, Failed};
use crate::shard::{Memory, Shard};
use crate::statistics::{PeerStats, Route, Stats};
use crate::text::c_string;

/// The phase between sync and publish: this rank reads and writes its slices.
#[derive(Debug)]
pub enum Owned {}

/// The phase in which some shards are published, each for `'s`, and the slices of the others are
/// still this rank's.
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

/// [`Owned`] or [`Opening`]: some slices are this rank's.
pub trait Owning: sealed::Phase {}
impl Owning for Owned {}
impl Owning for Opening<'_> {}

/// [`Opening`] or [`Published`]: some shards can be gathered and added to.
pub trait Open: sealed::Phase {}
impl Open for Opening<'_> {}
impl Open for Published {}

/// The current minibatch of a context, in a phase: the available methods are those that the
/// contract allows in it.
///
/// ```text
/// begin ─► Owned ── publish ──────────────────────────► Published ── sync ─► Owned, of the next minibatch
///            └───── publish_each ─► Opening ── publish_rest ─┘
/// ```
///
/// There is one per context. A call that ends a phase takes the minibatch by value, so no view of a slice outlives the
/// phase it may be used in; if it fails it gives the minibatch back, see [`Failed`].
///
/// Calls that odc.h lets run at once (gathers, additions, waits, claims) take `&self`, and may be made by several threads; all
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
    /// The caller has exclusive use of the context for `'c`.
    pub(super) fn new(context: &'c Context) -> Self {
        Minibatch { context, phase: PhantomData }
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

    /// The next of the minibatch's `count` items (0, 1, ...; each is handed out to one rank of the job), or none if all are
    /// taken. All ranks that claim name the same count. Waits for no rank's calls.
    pub fn claim(&self, count: u64) -> Result<Option<u64>, Error> {
        let mut index = 0;
        // SAFETY: the handle is valid, and claims may run concurrently.
        match unsafe { sys::odc_claim(self.context.handle(), count, &mut index) } {
            sys::ODC_DONE => check(sys::ODC_OK).map(|()| None),
            status => check(status).map(|()| Some(index)),
        }
    }

    /// The items that this rank claimed in `minibatch`, the running one or the one before, in order.
    pub fn claims(&mut self, minibatch: u64) -> Result<Vec<u64>, Error> {
        let (handle, mut count) = (self.context.handle(), 0);
        // SAFETY: without capacity nothing is written but the count.
        check(unsafe { sys::odc_get_claims(handle, minibatch, std::ptr::null_mut(), 0, &mut count) })?;
        let mut indices = vec![0; count];
        // SAFETY: `indices` has room for `count`.
        check(unsafe { sys::odc_get_claims(handle, minibatch, indices.as_mut_ptr(), count, &mut count) })?;
        Ok(indices)
    }

    /// What this rank computes in the running minibatch, in the plan's units; the last value before sync counts.
    pub fn report_cost(&mut self, cost: f64) -> Result<(), Error> {
        // SAFETY: the handle is valid.
        check(unsafe { sys::odc_report_cost(self.context.handle(), cost) })
    }

    /// Each rank's speed relative to their mean: reported cost per time from publish to sync, without waiting for publishes;
    /// the newest minibatch counts 0.3. 1: not measured yet. The same on all ranks.
    pub fn speeds(&mut self) -> Result<Vec<f64>, Error> {
        let mut speeds = vec![0.0; self.size() as usize];
        // SAFETY: `speeds` has room for each rank.
        check(unsafe { sys::odc_get_speeds(self.context.handle(), speeds.as_mut_ptr(), speeds.len()) })?;
        Ok(speeds)
    }

    /// Statistics, totals since the context joined.
    pub fn stats(&mut self) -> Result<Stats, Error> {
        let mut stats = sys::odc_stats::default();
        // SAFETY: `stats` is sized.
        check(unsafe { sys::odc_get_stats(self.context.handle(), &mut stats) })?;
        Ok(Stats::from_c(&stats))
    }

    /// How long this rank waited for another one.
    pub fn peer_stats(&mut self, rank: i32) -> Result<PeerStats, Error> {
        let mut stats = sys::odc_peer_stats::default();
        // SAFETY: `stats` is sized.
        check(unsafe { sys::odc_get_peer_stats(self.context.handle(), rank, &mut stats) })?;
        Ok(PeerStats::from_c(&stats))
    }

    /// The route to a rank's host memory, and why it was chosen.
    pub fn route(&mut self, rank: i32) -> Result<Route, Error> {
        self.route_to(rank, sys::ODC_HOST_MEMORY)
    }

    /// The route to a rank's GPU memory, and why it was chosen.
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

    /// Leaves the job without waiting; slices stay. Later calls return an error that this rank has
    /// left. Dropping the context leaves, too.
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

    /// An error that is not found before anything is published may leave some shards published.
    pub(super) fn note_publish(&self, status: sys::odc_status) {
        if matches!(status, sys::ODC_ERROR_ARGUMENT | sys::ODC_ERROR_PHASE | sys::ODC_ERROR_UNSUPPORTED) {
            return;
        }
        self.context.state.opened.store(true, Relaxed);
        if status != sys::ODC_OK {
            self.context.state.halfway.store(true, Relaxed);
        }
    }

    /// Ends a phase in which this rank has published slices of its own.
    pub(super) fn end(self, status: sys::odc_status) -> Result<Minibatch<'c, Published>, Failed<Self>> {
        self.note_publish(status);
        match check(status) {
            Ok(()) => Ok(self.into()),
            Err(error) => Err(Failed { error, back: self }),
        }
    }

    pub(super) fn into<Next>(self) -> Minibatch<'c, Next> {
        Minibatch { context: self.context, phase: PhantomData }
    }
}

/// A stream of CUDA's (`CUstream`, `cudaStream_t`); NULL is the legacy default stream.
pub type Stream = *mut std::ffi::c_void;
