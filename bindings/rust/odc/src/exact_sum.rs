// SPDX-License-Identifier: Apache-2.0
//! Sums of numbers whose bits depend neither on their order nor on which rank adds which; needs no context.

use odc_sys as sys;

use crate::error::{check, Error};
use crate::library::check_library;

/// Ranks combine their sums by adding `digits` ([`Reduction::Sum`](crate::Reduction::Sum)), ten exact sums in a call.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ExactSum {
    /// This rank's, or added over ranks.
    pub digits: [f64; sys::ODC_EXACT_DIGITS as usize],
}

impl ExactSum {
    /// Each value is rounded to a multiple of 2^-64, and is below 2^94.
    pub fn add(&mut self, values: &[f64]) -> Result<(), Error> {
        check_library()?;
        // SAFETY: both slices live through the call, which gets their lengths.
        check(unsafe { sys::odc_exact_add(self.digits.as_mut_ptr(), values.as_ptr(), values.len()) })
    }

    /// The sum of the digits, this rank's or all ranks', rounded to the nearest f64.
    pub fn value(&self) -> Result<f64, Error> {
        check_library()?;
        let mut value = 0.0;
        // SAFETY: the digits are as many as the call reads.
        check(unsafe { sys::odc_exact_value(self.digits.as_ptr(), &mut value) })?;
        Ok(value)
    }
}
