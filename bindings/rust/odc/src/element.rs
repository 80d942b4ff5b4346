// SPDX-License-Identifier: Apache-2.0
//! Element types, and the halves of a shard.

use odc_sys as sys;

/// A type of parameters: `f32`, `f64`, [`Bf16`], [`F16`], and `u8` for uninterpreted bytes.
///
/// # Safety
/// Every pattern of bits is a value, there is no padding, and size and meaning are those of `TYPE`.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The `odc_type`.
    const TYPE: sys::odc_type;
}

/// A type of gradients, as `scatter_add` is handed them: `f32`, `f64`, [`Bf16`], [`F16`].
///
/// # Safety
/// `Sum` is what the library accumulates `TYPE` in: `f64` for `ODC_F64`, else `f32`.
pub unsafe trait Gradient: Element {
    /// The accumulator's type.
    type Sum: Element;
}

/// A bfloat16, as its bits; arithmetic is for crates that have it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

/// An IEEE half-precision number, as its bits; arithmetic is for crates that have it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

macro_rules! elements {
    ($($element:ty = $name:ident $(, summed in $sum:ty)?;)*) => {$(
        // SAFETY: a number as odc.h names it.
        unsafe impl Element for $element {
            const TYPE: sys::odc_type = sys::$name;
        }
        $(
            // SAFETY: as odc.h says.
            unsafe impl Gradient for $element {
                type Sum = $sum;
            }
        )?
    )*};
}

elements! {
    f32 = ODC_F32, summed in f32;
    f64 = ODC_F64, summed in f64;
    Bf16 = ODC_BF16, summed in f32;
    F16 = ODC_F16, summed in f32;
    u8 = ODC_BYTES;
}

mod sealed {
    pub trait Half {}
    impl<T: super::Element> Half for T {}
    impl Half for () {}
}

/// The parameter half of a shard: an [`Element`], or `()` for a shard without parameters (a gradient shard).
pub trait ParameterHalf: sealed::Half {
    /// The `odc_type`, or 0.
    const TYPE: sys::odc_type;
    /// The element type of a slice.
    type Element: Copy + Send + Sync + 'static;
}

/// The gradient half of a shard: a [`Gradient`], or `()` for a shard without gradients (frozen parameters).
pub trait GradientHalf: sealed::Half {
    /// The `odc_type`, or 0.
    const TYPE: sys::odc_type;
    /// The element type of a slice.
    type Sum: Copy + Send + Sync + 'static;
}

impl<P: Element> ParameterHalf for P {
    const TYPE: sys::odc_type = <P as Element>::TYPE;
    type Element = P;
}

impl ParameterHalf for () {
    const TYPE: sys::odc_type = 0;
    type Element = ();
}

impl<G: Gradient> GradientHalf for G {
    const TYPE: sys::odc_type = <G as Element>::TYPE;
    type Sum = G::Sum;
}

impl GradientHalf for () {
    const TYPE: sys::odc_type = 0;
    type Sum = ();
}
