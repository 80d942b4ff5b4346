// SPDX-License-Identifier: Apache-2.0
//! A minibatch and its phases.

mod minibatch;
mod opening;
mod owned;
mod published;

pub use minibatch::{Minibatch, Open, Opening, Owned, Owning, Published, Stream};
