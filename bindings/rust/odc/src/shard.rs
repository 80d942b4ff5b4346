// SPDX-License-Identifier: Apache-2.0
//! Shards: 1-D tensors divided over ranks.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use odc_sys as sys;

use crate::context::Context;
use crate::element::{GradientHalf, ParameterHalf};
use crate::error::{check, Error};
use crate::text::c_string;

/// A shard as all listed ranks register it, in the same minibatch; the types of its halves are
/// those of [`register`](crate::Minibatch::register).
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    name: String,
    numel: usize,
    ranks: Option<Vec<i32>>,
    slices: Option<Vec<u64>>,
    exact: Option<f32>,
}

impl Description {
    /// A shard of `numel` elements, divided over all ranks equally, as `torch.chunk` does it. The name, of 1 to 255
    /// bytes, is unique among the context's registered shards.
    pub fn new(name: impl Into<String>, numel: usize) -> Description {
        Description { name: name.into(), numel, ranks: None, slices: None, exact: None }
    }

    /// The ranks that have it, distinct; only they use it.
    pub fn ranks(mut self, ranks: impl Into<Vec<i32>>) -> Description {
        self.ranks = Some(ranks.into());
        self
    }

    /// The elements of each listed rank, adding up to `numel`; may be 0.
    pub fn slices(mut self, numels: impl Into<Vec<u64>>) -> Description {
        self.slices = Some(numels.into());
        self
    }

    /// Sums gradients, `f32`, [`Bf16`](crate::Bf16) or [`F16`](crate::F16) in host memory, so that the bits depend on
    /// the gradients only, not on order, ranks, hosts or slices. All gradients of the first minibatch are below
    /// `largest`; 0: the default. See `ODC_SUM_EXACT` in odc.h.
    pub fn exact(mut self, largest: f32) -> Description {
        self.exact = Some(largest);
        self
    }

    /// The library reads a slice for each listed rank.
    fn check(&self, size: i32) -> Result<(), Error> {
        let listed = self.ranks.as_ref().map_or(size as usize, |ranks| ranks.len());
        match &self.slices {
            Some(slices) if slices.len() != listed => Err(Error::Argument(format!(
                "shard \"{}\" has {} slices for {} ranks; give one for each",
                self.name,
                slices.len(),
                listed
            ))),
            _ => Ok(()),
        }
    }

    /// Points into `self` and `name`.
    fn to_c<P: ParameterHalf, G: GradientHalf, M: Memory>(&self, name: &CStr) -> sys::odc_shard_desc {
        sys::odc_shard_desc {
            name: name.as_ptr(),
            numel: self.numel as u64,
            parameter_type: P::TYPE,
            gradient_type: G::TYPE,
            ranks: self.ranks.as_ref().map_or(std::ptr::null(), |ranks| ranks.as_ptr()),
            slices: self.slices.as_ref().map_or(std::ptr::null(), |slices| slices.as_ptr()),
            rank_count: self.ranks.as_ref().map_or(0, |ranks| ranks.len() as u64),
            memory: M::KIND,
            sum: self.exact.map_or(0, |_| sys::ODC_SUM_EXACT),
            largest: self.exact.unwrap_or(0.0),
            ..Default::default()
        }
    }
}

/// Shards in host memory.
#[derive(Debug)]
pub enum Host {}

/// Shards in GPU memory: their slices, and buffers given with them, are for the GPU only.
#[derive(Debug)]
pub enum Gpu {}

mod sealed {
    pub trait Memory {
        const KIND: odc_sys::odc_memory;
    }
    impl Memory for super::Host {
        const KIND: odc_sys::odc_memory = odc_sys::ODC_HOST_MEMORY;
    }
    impl Memory for super::Gpu {
        const KIND: odc_sys::odc_memory = odc_sys::ODC_GPU_MEMORY;
    }
}

/// [`Host`] or [`Gpu`].
pub trait Memory: sealed::Memory {}
impl Memory for Host {}
impl Memory for Gpu {}

/// A shard of a context: a 1-D tensor of parameters `P` and gradients `G` divided over ranks, of which this rank holds a
/// slice. `()` as `P` or `G` means that it lacks that half, so it cannot be gathered, or nothing added to it:
///
/// ```compile_fail,E0277
/// # fn main() -> Result<(), odc::Error> {
/// # let mut context = odc::Context::join(odc::Config::new())?;
/// # let mut owned = context.begin()?;
/// let frozen = owned.register::<f32, ()>(&odc::Description::new("frozen", 1000))?;
/// let open = owned.publish()?;
/// open.scatter_add(&frozen, &[])?; // it has no gradients
/// # Ok(())
/// # }
/// ```
///
/// A shard that is dropped stays registered, and is published with all others; see
/// [`release`](crate::Minibatch::release).
pub struct Shard<'c, P: ParameterHalf = f32, G: GradientHalf = f32, M = Host> {
    pub(crate) context: &'c Context,
    pub(crate) handle: NonNull<sys::odc_shard>,
    name: String,
    numel: usize,
    range: Range<usize>,
    parameters: *mut P::Element,
    gradients: *mut G::Sum,
    memory: PhantomData<M>,
}

// SAFETY: odc.h binds a shard to no thread. Through `&Shard` parameters are read, which peers read, too, and nobody
// writes; the calls that it is given to are those of a Minibatch, which knows what may run at once.
unsafe impl<P: ParameterHalf, G: GradientHalf, M> Send for Shard<'_, P, G, M> {}
// SAFETY: see above.
unsafe impl<P: ParameterHalf, G: GradientHalf, M> Sync for Shard<'_, P, G, M> {}

impl<P: ParameterHalf, G: GradientHalf, M> std::fmt::Debug for Shard<'_, P, G, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shard(\"{}\", {:?} of {})", self.name, self.range, self.numel)
    }
}

impl<'c, P: ParameterHalf, G: GradientHalf, M: Memory> Shard<'c, P, G, M> {
    pub(crate) fn register(context: &'c Context, descriptions: &[Description]) -> Result<Vec<Self>, Error> {
        let mut names = Vec::new();
        for one in descriptions {
            one.check(context.size())?;
            names.push(c_string(&one.name, &format!("the name of shard {:?}", one.name))?);
        }
        let descs: Vec<_> = descriptions.iter().zip(&names).map(|(one, name)| one.to_c::<P, G, M>(name)).collect();
        let mut handles = vec![std::ptr::null_mut(); descs.len()];
        // SAFETY: `handles` has room for as many as `descs` has, whose pointers live through the call.
        check(unsafe {
            sys::odc_register_shards(context.handle(), descs.as_ptr(), descs.len(), handles.as_mut_ptr())
        })?;
        descriptions.iter().zip(handles).map(|(one, handle)| Shard::new(context, one, handle)).collect()
    }

    fn new(context: &'c Context, description: &Description, handle: *mut sys::odc_shard) -> Result<Self, Error> {
        let mut slice = sys::odc_slice::default();
        // SAFETY: the handle is valid, `slice` is sized.
        check(unsafe { sys::odc_get_slice(handle, &mut slice) })?;
        let offset = slice.offset as usize;
        Ok(Shard {
            context,
            handle: NonNull::new(handle).expect("odc_register_shards returned shards"),
            name: description.name.clone(),
            numel: description.numel,
            range: offset..offset + slice.numel as usize,
            parameters: slice.parameters.cast(),
            gradients: slice.gradients.cast(),
            memory: PhantomData,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Elements of the whole shard.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// What exact sums of this rank's slice ask for in the next minibatch, negative if nothing was added to it, 0 of
    /// other shards. To go on in another job with the same bits, save the largest of all ranks, and hand that to
    /// [`Description::exact`].
    pub fn largest(&self) -> f32 {
        let mut slice = sys::odc_slice::default();
        // SAFETY: the handle is valid as long as the shard, `slice` is sized.
        match unsafe { sys::odc_get_slice(self.handle.as_ptr(), &mut slice) } {
            sys::ODC_OK => slice.largest,
            _ => 0.0,
        }
    }

    /// This rank's part of the elements. An empty slice is neither published nor waited for.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl<P: ParameterHalf, G: GradientHalf> Shard<'_, P, G, Host> {
    /// This rank's parameters, empty if it has none. They may be read in every phase, and after an error, too, as only
    /// this rank writes them, which takes the shard for itself.
    pub fn parameters(&self) -> &[P::Element] {
        // SAFETY: `range` elements of the library's memory, or NULL; zeros at first; valid until the context's end or
        // until the shard is released, which consumes it. Nobody writes them: see `slice`.
        unsafe { elements(self.parameters, self.range.len()) }
    }

    /// # Safety
    /// Until the view's end no slice of the shard is published.
    pub(crate) unsafe fn slice(&mut self) -> Slice<'_, P, G> {
        // SAFETY: as `parameters`, and the caller says that no peer touches it.
        unsafe {
            Slice {
                parameters: elements_mut(self.parameters, self.range.len()),
                gradients: elements_mut(self.gradients, self.range.len()),
            }
        }
    }
}

impl<P: ParameterHalf, G: GradientHalf> Shard<'_, P, G, Gpu> {
    /// This rank's parameters in GPU memory, [`range`](Shard::range)`.len()` of them; NULL if there are none. What uses
    /// them keeps to the contract: kernels write them between sync and publish only, by streams that the publish
    /// follows.
    pub fn parameters_on_gpu(&self) -> *mut P::Element {
        self.parameters
    }

    /// This rank's sums in GPU memory; NULL if there are none. They are touched between sync and publish only.
    pub fn gradients_on_gpu(&self) -> *mut G::Sum {
        self.gradients
    }
}

/// This rank's part of a shard, while nobody else touches it: between sync and publish.
#[derive(Debug)]
#[non_exhaustive]
pub struct Slice<'a, P: ParameterHalf, G: GradientHalf> {
    /// What the next publish lets peers read; empty if the shard has no parameters.
    pub parameters: &'a mut [P::Element],
    /// The sums of the last minibatch; empty if the shard has no gradients.
    pub gradients: &'a mut [G::Sum],
}

/// # Safety
/// `start` is NULL, or `numel` elements begin there that live, and are not written, as long as the slice.
unsafe fn elements<'a, T>(start: *const T, numel: usize) -> &'a [T] {
    if start.is_null() || numel == 0 {
        return &[];
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(start, numel) }
}

/// # Safety
/// As `elements`, and nobody else touches them.
unsafe fn elements_mut<'a, T>(start: *mut T, numel: usize) -> &'a mut [T] {
    if start.is_null() || numel == 0 {
        return &mut [];
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts_mut(start, numel) }
}
