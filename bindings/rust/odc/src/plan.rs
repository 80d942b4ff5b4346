// SPDX-License-Identifier: Apache-2.0
//! Balancing a minibatch over ranks and microbatches; needs no context.

use odc_sys as sys;

use crate::error::{check, Error};
use crate::library::check_library;
use crate::text::c_string;

/// How a plan divides samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Policy {
    /// Rank r takes samples r, r+W, ...; sorted; one sample a microbatch.
    LocalSort = sys::ODC_LOCAL_SORT,
    /// Equal sample counts and equal microbatch counts: what collectives need.
    LbMicro = sys::ODC_LB_MICRO,
    /// Only the minibatch is balanced; microbatch counts differ: needs ODC.
    LbMini = sys::ODC_LB_MINI,
}

/// The cost of a sample: one of s tokens costs a·x² + b·x, x = s / 32000.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Of the square.
    pub a: f64,
    /// Of the length.
    pub b: f64,
}

impl Cost {
    /// By its length alone.
    pub const LINEAR: Cost = Cost { a: 0.0, b: 1.0 };

    /// Of "linear", "1.5b" or "7b".
    pub fn of_model(name: &str) -> Result<Cost, Error> {
        check_library()?;
        let name = c_string(name, "the model's name")?;
        let mut cost = Cost { a: 0.0, b: 0.0 };
        // SAFETY: `name` ends with a NUL and lives through the call.
        check(unsafe { sys::odc_plan_cost(name.as_ptr(), &mut cost.a, &mut cost.b) })?;
        Ok(cost)
    }
}

/// Which rank takes which samples.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    ranks: Vec<Vec<Vec<usize>>>, // up to the last that has samples
    /// The cost of the costliest rank.
    pub makespan: f64,
    /// A lower bound of the makespan for these samples and ranks.
    pub lower_bound: f64,
}

impl Plan {
    /// A rank's microbatches in the order to run them, each a list of samples, by their index. Ranks beyond the samples
    /// have none.
    pub fn microbatches(&self, rank: i32) -> &[Vec<usize>] {
        usize::try_from(rank).ok().and_then(|rank| self.ranks.get(rank)).map_or(&[], Vec::as_slice)
    }
}

/// Divides samples of these lengths (tokens, each in 1..=`max_tokens`) over ranks, into microbatches of at most
/// `max_tokens`. Deterministic.
pub fn plan(lengths: &[u64], ranks: i32, max_tokens: u64, policy: Policy, cost: Cost) -> Result<Plan, Error> {
    check_library()?;
    let request = sys::odc_plan_request {
        lengths: lengths.as_ptr(),
        count: lengths.len() as u64,
        max_tokens,
        a: cost.a,
        b: cost.b,
        ranks,
        policy: policy as i32,
        ..Default::default()
    };
    let mut rank_of = vec![0; lengths.len()];
    let mut microbatch_of = vec![0; lengths.len()];
    let mut summary = sys::odc_plan_summary::default();
    // SAFETY: the arrays have an element for each sample.
    check(unsafe { sys::odc_plan(&request, rank_of.as_mut_ptr(), microbatch_of.as_mut_ptr(), &mut summary) })?;
    let used = rank_of.iter().max().map_or(0, |&last| last as usize + 1);
    let mut made: Vec<Vec<Vec<usize>>> = vec![Vec::new(); used];
    for (sample, (&rank, &microbatch)) in rank_of.iter().zip(&microbatch_of).enumerate() {
        let mine = &mut made[rank as usize];
        let needed = microbatch as usize + 1;
        if mine.len() < needed {
            mine.resize(needed, Vec::new());
        }
        mine[microbatch as usize].push(sample);
    }
    Ok(Plan { ranks: made, makespan: summary.makespan, lower_bound: summary.lower_bound })
}
