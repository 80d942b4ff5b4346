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
    /// Equal microbatch counts, those of similar cost run together: the best for collectives.
    SortedRows = sys::ODC_SORTED_ROWS,
}

/// The cost of a sample: one of s tokens costs a·x² + b·x, x = s / 32000.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// The coefficient of x².
    pub a: f64,
    /// The coefficient of x.
    pub b: f64,
}

impl Cost {
    /// By its length alone.
    pub const LINEAR: Cost = Cost { a: 0.0, b: 1.0 };

    /// The cost model of "linear", "1.5b" or "7b".
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
    /// If ranks wait for each other after each microbatch, as collectives do.
    pub collective_makespan: f64,
    /// Left to be claimed: microbatches, the costliest first, each a list of samples, by their index.
    pub items: Vec<Vec<usize>>,
}

impl Plan {
    /// A rank's microbatches in the order to run them, each a list of samples, by their index. Ranks beyond the samples
    /// have none.
    pub fn microbatches(&self, rank: i32) -> &[Vec<usize>] {
        usize::try_from(rank).ok().and_then(|rank| self.ranks.get(rank)).map_or(&[], Vec::as_slice)
    }
}

/// Several minibatches planned together.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct WindowPlan {
    minibatches: Vec<Vec<Vec<Vec<usize>>>>, // of each rank, up to the last that has samples
    /// The sum over the minibatches of the costliest rank's cost.
    pub makespan: f64,
    /// The same in the order of the data.
    pub makespan_before: f64,
    /// The sum if ranks wait for each other after each microbatch, as collectives do.
    pub collective_makespan: f64,
    /// The same in the order of the data.
    pub collective_makespan_before: f64,
    /// No order of these samples on these ranks takes less.
    pub lower_bound: f64,
    /// The share of the samples that changed their minibatch.
    pub moved: f64,
    /// By how many minibatches a sample moves, mean over all.
    pub displacement: f64,
    /// How a minibatch's tokens vary: standard deviation / mean.
    pub token_variation: f64,
    /// The same in the order of the data.
    pub token_variation_before: f64,
    /// Tokens of a minibatch, mean over the window: the divisor of gradients of a loss that is a sum over tokens.
    pub tokens: f64,
}

impl WindowPlan {
    /// A rank's microbatches of a minibatch in the order to run them, each a list of samples, by their index into the
    /// lengths of the whole window.
    pub fn microbatches(&self, minibatch: usize, rank: i32) -> &[Vec<usize>] {
        let ranks = self.minibatches.get(minibatch).map_or(&[][..], Vec::as_slice);
        usize::try_from(rank).ok().and_then(|rank| ranks.get(rank)).map_or(&[], Vec::as_slice)
    }
}

/// Which samples of a window may change their minibatch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lookahead {
    /// The few exchanges that save most.
    Exchanged {
        /// The limit of [`WindowPlan::moved`]; 0: 0.2.
        most_moved: f64,
        /// The limit of [`WindowPlan::displacement`]; 0: 0.5.
        most_displacement: f64,
    },
    /// All by cost, the costliest first, which changes training.
    Sorted,
}

impl Default for Lookahead {
    fn default() -> Self {
        Lookahead::Exchanged { most_moved: 0.0, most_displacement: 0.0 }
    }
}

/// Divides samples of these lengths (tokens, each in 1..=`max_tokens`) over ranks, into microbatches of at most
/// `max_tokens`. Deterministic.
pub fn plan(lengths: &[u64], ranks: i32, max_tokens: u64, policy: Policy, cost: Cost) -> Result<Plan, Error> {
    planned(&request_of(lengths, ranks, max_tokens, policy, cost))
}

/// By [`Policy::LbMini`] for ranks of these `speeds`, one for each, as `Minibatch::speeds` has them, and with the cheapest
/// samples, up to `tail` of the cost, left to be claimed: [`Plan::items`]. Costs are divided by a rank's speed, relative to
/// the mean.
pub fn plan_by_speed(lengths: &[u64], speeds: &[f64], max_tokens: u64, cost: Cost, tail: f64) -> Result<Plan, Error> {
    let ranks = i32::try_from(speeds.len()).unwrap_or(i32::MAX);
    let mut request = request_of(lengths, ranks, max_tokens, Policy::LbMini, cost);
    request.speeds = speeds.as_ptr();
    request.tail = tail;
    planned(&request)
}

/// The request's pointers are to slices that live through the call.
fn planned(request: &sys::odc_plan_request) -> Result<Plan, Error> {
    check_library()?;
    let count = request.count as usize;
    let (mut rank_of, mut microbatch_of) = (vec![0; count], vec![0; count]);
    let mut summary = sys::odc_plan_summary::default();
    // SAFETY: the arrays have an element for each sample.
    check(unsafe { sys::odc_plan(request, rank_of.as_mut_ptr(), microbatch_of.as_mut_ptr(), &mut summary) })?;
    let (left, given): (Vec<usize>, Vec<usize>) = (0..count).partition(|&sample| rank_of[sample] < 0);
    let none = vec![0; count];
    Ok(Plan {
        ranks: divided(given.into_iter(), &rank_of, &microbatch_of),
        makespan: summary.makespan,
        lower_bound: summary.lower_bound,
        collective_makespan: summary.collective_makespan,
        items: divided(left.into_iter(), &none, &microbatch_of).pop().unwrap_or_default(),
    })
}

/// Plans several minibatches together: with few samples a rank, a few change their minibatch, so that several long ones
/// meet in one and the others are short. `lengths` are of all samples of the window, in the order of the data; `counts` is
/// the number of samples of each minibatch, which stays. Never slower than [`plan`] on each by itself. Deterministic.
pub fn plan_window(
    lengths: &[u64],
    counts: &[u64],
    ranks: i32,
    max_tokens: u64,
    policy: Policy,
    cost: Cost,
    lookahead: Lookahead,
) -> Result<WindowPlan, Error> {
    check_library()?;
    let samples = request_of(lengths, ranks, max_tokens, policy, cost);
    let (order, most_moved, most_displacement) = match lookahead {
        Lookahead::Exchanged { most_moved, most_displacement } => {
            (sys::ODC_WINDOW_EXCHANGED, most_moved, most_displacement)
        }
        Lookahead::Sorted => (sys::ODC_WINDOW_SORTED, 0.0, 0.0),
    };
    let request = sys::odc_window_request {
        samples: &samples,
        counts: counts.as_ptr(),
        most_moved,
        most_displacement,
        minibatches: i32::try_from(counts.len()).unwrap_or(i32::MAX),
        order,
        ..Default::default()
    };
    let mut minibatch_of = vec![0; lengths.len()];
    let mut rank_of = vec![0; lengths.len()];
    let mut microbatch_of = vec![0; lengths.len()];
    let mut summary = sys::odc_window_summary::default();
    // SAFETY: the arrays have an element for each sample, `counts` one for each minibatch.
    check(unsafe {
        sys::odc_plan_window(
            &request,
            minibatch_of.as_mut_ptr(),
            rank_of.as_mut_ptr(),
            microbatch_of.as_mut_ptr(),
            &mut summary,
        )
    })?;
    let minibatches = (0..counts.len())
        .map(|minibatch| {
            let samples = (0..lengths.len()).filter(|&sample| minibatch_of[sample] as usize == minibatch);
            divided(samples, &rank_of, &microbatch_of)
        })
        .collect();
    Ok(WindowPlan {
        minibatches,
        makespan: summary.makespan,
        makespan_before: summary.makespan_before,
        collective_makespan: summary.collective_makespan,
        collective_makespan_before: summary.collective_makespan_before,
        lower_bound: summary.lower_bound,
        moved: summary.moved,
        displacement: summary.displacement,
        token_variation: summary.token_variation,
        token_variation_before: summary.token_variation_before,
        tokens: summary.tokens,
    })
}

fn request_of(lengths: &[u64], ranks: i32, max_tokens: u64, policy: Policy, cost: Cost) -> sys::odc_plan_request {
    sys::odc_plan_request {
        lengths: lengths.as_ptr(),
        count: lengths.len() as u64,
        max_tokens,
        a: cost.a,
        b: cost.b,
        ranks,
        policy: policy as i32,
        ..Default::default()
    }
}

/// These samples by rank, up to the last that has any, and microbatch.
fn divided(samples: impl Iterator<Item = usize>, rank_of: &[i32], microbatch_of: &[i32]) -> Vec<Vec<Vec<usize>>> {
    let mut made: Vec<Vec<Vec<usize>>> = Vec::new();
    for sample in samples {
        let (rank, microbatch) = (rank_of[sample] as usize, microbatch_of[sample] as usize);
        made.resize(made.len().max(rank + 1), Vec::new());
        let mine = &mut made[rank];
        mine.resize(mine.len().max(microbatch + 1), Vec::new());
        mine[microbatch].push(sample);
    }
    made
}
