// SPDX-License-Identifier: Apache-2.0
//! Trains a byte-level language model (a perceptron with one hidden layer over the last bytes) on the paragraphs of text
//! files, whose lengths have a long tail. Each minibatch is planned by LB-Mini: ranks run different numbers of
//! microbatches, and wait for each other once.
//!
//!     cargo build --example train
//!     odc run -n 4 -- target/debug/examples/train --minibatches 50 --save weights
//!
//! Rank 0 prints a line a minibatch:
//!
//!     [0] minibatch 0: loss 5.535640964 a byte over 3626 bytes, microbatches by rank 5 6 5 6
//!     [0] minibatch 1: loss 5.424759889 a byte over 3598 bytes, microbatches by rank 5 5 5 5

mod corpus;
mod model;

use std::path::PathBuf;

use odc::{Config, Context, Cost, Description, Minibatch, Owned, Policy, Reduction, Shard};

use model::{Gradients, Model, LAYERS};

type AnyError = Box<dyn std::error::Error>;

const MAX_BYTES: usize = 200; // of a paragraph, and of a microbatch
const LEARNING_RATE: f32 = 0.5;
const OPTIONS: &str = "--data FOLDER, --minibatches N, --paragraphs N (of a minibatch) and --save FILE";

struct Options {
    data: Option<PathBuf>,
    minibatches: usize,
    paragraphs: usize,
    save: Option<PathBuf>,
}

fn parse_options() -> Result<Options, AnyError> {
    let mut options = Options { data: None, minibatches: 20, paragraphs: 32, save: None };
    let mut words = std::env::args().skip(1);
    while let Some(name) = words.next() {
        let mut value = || words.next().ok_or(format!("{} wants a value", name));
        let number = |value: String| value.parse().map_err(|_| format!("{} wants a number, not {:?}", name, value));
        match name.as_str() {
            "--help" => {
                println!("train options: {}", OPTIONS);
                std::process::exit(0);
            }
            "--data" => options.data = Some(value()?.into()),
            "--minibatches" => options.minibatches = number(value()?)?,
            "--paragraphs" => options.paragraphs = number(value()?)?,
            "--save" => options.save = Some(value()?.into()),
            _ => return Err(format!("{} is no option; there are {}", name, OPTIONS).into()),
        }
    }
    Ok(options)
}

fn main() {
    if let Err(error) = run() {
        eprintln!("{}", error);
        std::process::exit(1);
    }
}

fn run() -> Result<(), AnyError> {
    let options = parse_options()?;
    let mut paragraphs = corpus::Paragraphs::open(options.data.as_deref(), MAX_BYTES)?;
    let mut context = Context::join(Config::new())?;
    let mut owned = context.begin()?;
    let descriptions = LAYERS.map(|layer| Description::new(layer.name, layer.numel));
    let mut layers = owned.register_all::<f32, f32>(&descriptions)?;
    for (layer, shard) in LAYERS.iter().zip(&mut layers) {
        let range = shard.range(); // the same weights for any number of ranks
        for (i, parameter) in range.zip(owned.slice_mut(shard)?.parameters) {
            *parameter = layer.first_weight(i);
        }
    }
    for _ in 0..options.minibatches {
        let samples = paragraphs.take(options.paragraphs)?;
        owned = train(owned, &mut layers, &samples)?;
    }
    let open = owned.publish()?;
    let mut weights = Model::default();
    for (shard, full) in layers.iter().zip(&mut weights.layers) {
        open.gather(shard, full)?;
    }
    if let Some(path) = options.save.filter(|_| open.rank() == 0) {
        let bytes: Vec<u8> = weights.layers.concat().iter().flat_map(|weight| weight.to_le_bytes()).collect();
        std::fs::write(&path, bytes).map_err(|error| format!("{} cannot be written: {}", path.display(), error))?;
    }
    open.sync()?;
    Ok(())
}

/// One minibatch.
fn train<'c>(
    owned: Minibatch<'c, Owned>,
    layers: &mut [Shard<'c>],
    samples: &[Vec<u8>],
) -> Result<Minibatch<'c, Owned>, odc::Error> {
    let lengths: Vec<u64> = samples.iter().map(|sample| sample.len() as u64).collect();
    let plan = odc::plan(&lengths, owned.size(), MAX_BYTES as u64, Policy::LbMini, Cost::LINEAR)?;
    let open = owned.publish()?;
    let (mut model, mut loss, mut bytes) = (Model::default(), 0.0, 0.0);
    for microbatch in plan.microbatches(open.rank()) {
        for (shard, full) in layers.iter().zip(&mut model.layers) {
            open.gather(shard, full)?;
        }
        let mut gradients = Gradients::default();
        for &sample in microbatch {
            loss += model.add_gradients(&samples[sample], &mut gradients);
            bytes += samples[sample].len() as f64;
        }
        for (shard, full) in layers.iter().zip(&gradients.layers) {
            open.scatter_add(shard, full)?;
        }
    }
    let number = open.number();
    let mut totals = [loss, bytes];
    let owned = open.sync_reduce(&mut totals, Reduction::Sum)?;
    for shard in layers {
        let slice = owned.slice_mut(shard)?;
        for (parameter, gradient) in slice.parameters.iter_mut().zip(slice.gradients) {
            *parameter -= LEARNING_RATE * *gradient / totals[1] as f32;
        }
    }
    if owned.rank() == 0 {
        let counts: Vec<_> = (0..owned.size()).map(|rank| plan.microbatches(rank).len().to_string()).collect();
        println!(
            "minibatch {}: loss {:.9} a byte over {} bytes, microbatches by rank {}",
            number,
            totals[0] / totals[1],
            totals[1],
            counts.join(" ")
        );
    }
    Ok(owned)
}
