// SPDX-License-Identifier: Apache-2.0
//! On-Demand Communication for sharded data-parallel training, by [libodc](odc_sys).
//!
//! A shard is a 1-D tensor divided over ranks. Its owners publish their slices once per minibatch; any rank gathers the
//! whole shard and scatter-adds gradients into the owners' accumulators, one-sidedly, as often as it likes, never
//! included. The one wait for all ranks is [`Minibatch::sync`].
//!
//! ```no_run
//! use odc::{Config, Context, Description};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let mut context = Context::join(Config::new())?; // rank and size from odc run, torchrun, mpirun or Slurm
//!     let mut owned = context.begin()?;
//!     let mut shard = owned.register::<f32, f32>(&Description::new("layer.0", 1000))?;
//!     let mut full = vec![0.0; 1000];
//!     for _ in 0..10 {
//!         let open = owned.publish()?; // my slices hold this minibatch's parameters
//!         for _ in 0..=open.rank() {
//!             open.gather(&shard, &mut full)?; // waits for the owners' publish, nothing else
//!             open.scatter_add(&shard, &vec![1.0; 1000])?; // forward and backward
//!         }
//!         owned = open.sync()?; // the one wait for all
//!         let slice = owned.slice_mut(&mut shard)?;
//!         for (parameter, gradient) in slice.parameters.iter_mut().zip(slice.gradients) {
//!             *parameter -= *gradient;
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! What the types hold: the phases of a minibatch (see [`Minibatch`]), that views do not outlive their shard and shards
//! not their context, which calls may run at once, and which half of a shard has which type. What they cannot hold, the
//! library reports: every [`Error`] has its sentence.

#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

mod config;
mod context;
mod element;
mod error;
mod exact_sum;
mod gpu;
mod library;
mod operation;
mod phases;
mod plan;
mod shard;
mod statistics;
mod text;

pub use config::{Config, LogLevel};
pub use context::Context;
pub use element::{Bf16, Element, Gradient, GradientHalf, ParameterHalf, F16};
pub use error::{Error, Failed};
pub use exact_sum::ExactSum;
pub use gpu::GpuOperation;
pub use library::{
    build, check_library, library_path, settings, topology, transports, Setting, Topology, Transport, Version,
};
pub use operation::Operation;
pub use phases::{Minibatch, Open, Opening, Owned, Owning, Published, Stream};
pub use plan::{plan, plan_by_speed, plan_window, Cost, Lookahead, Plan, Policy, WindowPlan};
pub use shard::{Description, Gpu, Host, Memory, Shard, Slice};
pub use statistics::{PeerStats, Reduction, Route, Stats};

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
