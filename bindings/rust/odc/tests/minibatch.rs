// SPDX-License-Identifier: Apache-2.0
//! Jobs of random shards against a model that is computed from rank numbers alone: what is gathered is what the owners
//! wrote, and sums are what all ranks added. All values are small integers, so every sum is exact.

mod ranks;

use odc::{
    Bf16, Description, ExactSum, GradientHalf, Minibatch, Open, Opening, Owned, ParameterHalf, Reduction, Shard, F16,
};
use ranks::mix;

const MINIBATCHES: u64 = 4;
const SHARDS: u64 = 7;

/// A small integer as a value of each type.
trait Number: Copy + PartialEq + std::fmt::Debug {
    fn of(number: u64) -> Self;
}

impl Number for f32 {
    fn of(number: u64) -> f32 {
        number as f32
    }
}

impl Number for f64 {
    fn of(number: u64) -> f64 {
        number as f64
    }
}

impl Number for u8 {
    fn of(number: u64) -> u8 {
        number as u8
    }
}

impl Number for Bf16 {
    fn of(number: u64) -> Bf16 {
        Bf16(((number as f32).to_bits() >> 16) as u16) // the upper half of the f32, exact to 256
    }
}

impl Number for F16 {
    fn of(number: u64) -> F16 {
        let bits = (number as f32).to_bits(); // 8 bits of exponent, 23 of fraction, to 5 and 10; exact to 2048
        F16(if number == 0 { 0 } else { (((bits >> 23) - 127 + 15) << 10 | (bits >> 13) & 0x3ff) as u16 })
    }
}

/// A job's shards, derived from rank numbers.
#[derive(Clone, Copy)]
struct Model {
    seed: u64,
    size: u64,
}

impl Model {
    fn random(&self, what: &[u64]) -> u64 {
        mix(&[&[self.seed, self.size], what].concat())
    }

    fn numel(&self, shard: u64) -> usize {
        [1, 7, 1000, 40_000][(self.random(&[1, shard]) % 4) as usize] + (self.random(&[2, shard]) % 50) as usize
    }

    /// Listed by a permutation of some of the ranks, the first of them always.
    fn listed(&self, shard: u64) -> Vec<i32> {
        let mut ranks: Vec<i32> = (0..self.size as i32).collect();
        ranks.sort_by_key(|&rank| self.random(&[3, shard, rank as u64]));
        let keep = 1 + self.random(&[4, shard]) % self.size;
        ranks.truncate(keep as usize);
        ranks
    }

    /// Equal for even shards; else random cuts, zero sizes among them.
    fn slices(&self, shard: u64) -> Vec<u64> {
        let (numel, owners) = (self.numel(shard) as u64, self.listed(shard).len() as u64);
        if shard % 2 == 0 {
            let chunk = (numel + owners - 1) / owners;
            return (0..owners).map(|i| (numel - (i * chunk).min(numel)).min(chunk)).collect();
        }
        let mut cuts: Vec<u64> = (1..owners).map(|i| self.random(&[5, shard, i]) % (numel + 1)).collect();
        cuts.extend([0, numel]);
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    fn describe(&self, shard: u64) -> Description {
        let description = Description::new(format!("shard {}", shard), self.numel(shard)).ranks(self.listed(shard));
        if shard % 2 == 0 {
            description
        } else {
            description.slices(self.slices(shard))
        }
    }

    fn parameter(&self, shard: u64, minibatch: u64, element: usize) -> u64 {
        self.random(&[6, shard, minibatch]).wrapping_add(element as u64 * 31) % 200
    }

    fn gradient(&self, shard: u64, minibatch: u64, rank: u64, call: u64, element: usize) -> u64 {
        self.random(&[7, shard, minibatch, rank, call]).wrapping_add(element as u64 * 17) % 100
    }

    fn calls(&self, shard: u64, minibatch: u64, rank: u64) -> u64 {
        self.random(&[8, shard, minibatch, rank]) % 4
    }

    fn sum(&self, shard: u64, minibatch: u64, element: usize) -> u64 {
        let of_rank = |rank: u64| -> u64 {
            let calls = self.calls(shard, minibatch, rank);
            (0..calls).map(|call| self.gradient(shard, minibatch, rank, call, element)).sum()
        };
        self.listed(shard).iter().map(|&rank| of_rank(rank as u64)).sum()
    }
}

struct Tensor<'c, P: ParameterHalf, G: GradientHalf> {
    model: Model,
    number: u64,
    shard: Shard<'c, P, G>,
}

/// A tensor of any types.
trait AnyTensor<'c> {
    fn check_sums_and_write(&mut self, owned: &Minibatch<'c, Owned>);
    fn write_and_publish<'s>(&'s mut self, opening: &mut Minibatch<'c, Opening<'s>>);
    fn use_it(&self, open: &Minibatch<'c, odc::Published>);
    fn release(self: Box<Self>, owned: &mut Minibatch<'c, Owned>);
}

impl<'c, P, G> Tensor<'c, P, G>
where
    P: odc::Element + Number,
    G: odc::Gradient + Number,
    G::Sum: Number,
{
    fn check_parameters<Phase: Open>(&self, open: &Minibatch<'c, Phase>, full: &[P]) {
        for (i, got) in full.iter().enumerate() {
            let wanted = P::of(self.model.parameter(self.number, open.number(), i));
            assert_eq!(*got, wanted, "element {} of {:?} in {:?}", i, self.shard, open);
        }
    }

    fn gradients<Phase: Open>(&self, open: &Minibatch<'c, Phase>, call: u64) -> Vec<G> {
        let of = |i| self.model.gradient(self.number, open.number(), open.rank() as u64, call, i);
        (0..self.shard.numel()).map(|i| G::of(of(i))).collect()
    }

    fn write(model: Model, number: u64, minibatch: u64, begin: usize, parameters: &mut [P]) {
        for (i, parameter) in parameters.iter_mut().enumerate() {
            *parameter = P::of(model.parameter(number, minibatch, begin + i));
        }
    }
}

impl<'c, P, G> AnyTensor<'c> for Tensor<'c, P, G>
where
    P: odc::Element + Number,
    G: odc::Gradient + Number,
    G::Sum: Number,
{
    fn check_sums_and_write(&mut self, owned: &Minibatch<'c, Owned>) {
        let range = self.shard.range();
        let slice = owned.slice_mut(&mut self.shard).unwrap();
        assert_eq!((slice.parameters.len(), slice.gradients.len()), (range.len(), range.len()));
        for (i, got) in slice.gradients.iter().enumerate() {
            let before = |minibatch| self.model.sum(self.number, minibatch, range.start + i);
            let wanted = G::Sum::of(owned.number().checked_sub(1).map_or(0, before));
            assert_eq!(*got, wanted, "element {} of shard {} in {:?}", range.start + i, self.number, owned);
        }
        Self::write(self.model, self.number, owned.number(), range.start, slice.parameters);
    }

    fn write_and_publish<'s>(&'s mut self, opening: &mut Minibatch<'c, Opening<'s>>) {
        let range = self.shard.range();
        let slice = opening.slice_mut(&mut self.shard).unwrap();
        Self::write(self.model, self.number, opening.number(), range.start, slice.parameters);
        let shard = opening.publish(&mut self.shard).unwrap();
        assert_eq!(shard.parameters().len(), range.len());
    }

    fn use_it(&self, open: &Minibatch<'c, odc::Published>) {
        let numel = self.shard.numel();
        for call in 0..self.model.calls(self.number, open.number(), open.rank() as u64) {
            let gradients = self.gradients(open, call);
            if self.model.random(&[9, self.number, call]) % 2 == 0 {
                let mut full = vec![P::of(199); numel];
                open.gather(&self.shard, &mut full).unwrap();
                self.check_parameters(open, &full);
                open.scatter_add(&self.shard, &gradients).unwrap();
            } else {
                let gather = open.gather_start(&self.shard, vec![P::of(199); numel]).unwrap();
                let addition = open.scatter_add_start(&self.shard, gradients.clone()).unwrap();
                self.check_parameters(open, &gather.wait().unwrap());
                if call % 2 == 0 {
                    assert_eq!(addition.wait().unwrap(), gradients);
                } // otherwise the sync waits for it
            }
        }
        for (i, got) in self.shard.parameters().iter().enumerate() {
            let wanted = self.model.parameter(self.number, open.number(), self.shard.range().start + i);
            assert_eq!(*got, P::of(wanted));
        }
    }

    fn release(self: Box<Self>, owned: &mut Minibatch<'c, Owned>) {
        owned.release(self.shard).unwrap();
    }
}

fn register<'c>(model: Model, number: u64, owned: &mut Minibatch<'c, Owned>) -> Box<dyn AnyTensor<'c> + 'c> {
    fn make<'c, P, G>(model: Model, number: u64, owned: &mut Minibatch<'c, Owned>) -> Box<dyn AnyTensor<'c> + 'c>
    where
        P: odc::Element + Number,
        G: odc::Gradient + Number,
        G::Sum: Number,
    {
        let shard = owned.register::<P, G>(&model.describe(number)).unwrap();
        let place = model.listed(number).iter().position(|&rank| rank == owned.rank()).unwrap();
        let slices = model.slices(number);
        let begin: u64 = slices[..place].iter().sum();
        assert_eq!(shard.range(), begin as usize..(begin + slices[place]) as usize);
        Box::new(Tensor { model, number, shard })
    }
    match model.random(&[10, number]) % 6 {
        0 => make::<f32, f32>(model, number, owned),
        1 => make::<f64, f64>(model, number, owned),
        2 => make::<Bf16, Bf16>(model, number, owned),
        3 => make::<F16, F16>(model, number, owned),
        4 => make::<u8, f32>(model, number, owned),
        _ => make::<Bf16, f64>(model, number, owned),
    }
}

fn run_job(seed: u64, size: i32) {
    let model = Model { seed, size: size as u64 };
    ranks::run(size, |context| {
        let rank = context.rank();
        let mut owned = context.begin().unwrap();
        let mine = (0..SHARDS).filter(|&shard| model.listed(shard).contains(&rank));
        let mut tensors: Vec<_> = mine.map(|number| register(model, number, &mut owned)).collect();
        for minibatch in 0..MINIBATCHES {
            assert_eq!(owned.number(), minibatch);
            let mut values = [rank as f64, 1.0];
            owned.all_reduce(&mut values, Reduction::Max).unwrap();
            assert_eq!(values, [size as f64 - 1.0, 1.0]);
            let one_by_one = model.random(&[11, minibatch, rank as u64]) % 2 == 0;
            tensors.iter_mut().for_each(|tensor| tensor.check_sums_and_write(&owned));
            let open = if one_by_one {
                let mut opening = owned.publish_each();
                let some = tensors.len() - tensors.len() / 3;
                tensors[..some].iter_mut().for_each(|tensor| tensor.write_and_publish(&mut opening));
                opening.publish_rest().unwrap()
            } else {
                owned.publish().unwrap()
            };
            tensors.iter().for_each(|tensor| tensor.use_it(&open));
            let mut values = [rank as f64, 1.0];
            owned = open.sync_reduce(&mut values, Reduction::Sum).unwrap();
            assert_eq!(values, [(0..size).sum::<i32>() as f64, size as f64]);
        }
        tensors.iter_mut().for_each(|tensor| tensor.check_sums_and_write(&owned));
        for tensor in tensors {
            tensor.release(&mut owned);
        }
        assert_eq!(owned.stats().unwrap().slice_bytes, 0);
    });
}

#[test]
fn jobs_of_random_shards_are_as_the_model_says() {
    let seed = ranks::test_seed();
    for size in [1, 2, 3, 4] {
        run_job(seed, size);
    }
}

#[test]
fn a_half_may_be_absent() {
    ranks::run(2, |context| {
        let mut owned = context.begin().unwrap();
        let mut frozen = owned.register::<f32, ()>(&Description::new("frozen", 10)).unwrap();
        let mut sums = owned.register::<(), f32>(&Description::new("sums", 10)).unwrap();
        let slice = owned.slice_mut(&mut frozen).unwrap();
        assert_eq!((slice.parameters.len(), slice.gradients.len()), (5, 0));
        slice.parameters.fill(3.0);
        let open = owned.publish().unwrap();
        let mut full = [0.0; 10];
        open.gather(&frozen, &mut full).unwrap();
        assert_eq!(full, [3.0; 10]);
        open.scatter_add(&sums, &[1.5; 10]).unwrap();
        let owned = open.sync().unwrap();
        let slice = owned.slice_mut(&mut sums).unwrap();
        assert_eq!((slice.parameters.len(), slice.gradients), (0, &mut [3.0; 5][..]));
    });
}

#[test]
fn exact_sums_do_not_depend_on_the_order() {
    ranks::run(2, |context| {
        let mut owned = context.begin().unwrap();
        let mut shard = owned.register::<(), f32>(&Description::new("exact", 2).exact(4.0)).unwrap();
        let plain = owned.register::<(), f32>(&Description::new("plain", 2)).unwrap();
        assert_eq!((shard.largest(), plain.largest()), (4.0, 0.0));
        let open = owned.publish().unwrap();
        let sign = if open.rank() == 0 { 1.0 } else { -1.0 };
        let least = 2f32.powi(-40); // lost in a sum of f32
        open.scatter_add(&shard, &[3.0 * sign; 2]).unwrap();
        open.scatter_add(&shard, &[least; 2]).unwrap();
        let mut owned = open.sync().unwrap();
        assert_eq!(owned.slice_mut(&mut shard).unwrap().gradients, [2.0 * least; 1]);
        let next = 2f32.powi(26) * 2.0 * least; // of the largest sum
        assert_eq!((shard.largest(), owned.stats().unwrap().clamped_addends), (next, 0));
        let error = owned.register::<(), f32>(&Description::new("wrong", 2).exact(f32::NAN)).unwrap_err();
        assert!(error.to_string().contains("largest is nan"), "{}", error);
    });
}

#[test]
fn exact_sums_of_numbers_do_not_depend_on_the_division() {
    ranks::run(2, |context| {
        let mut owned = context.begin().unwrap();
        let mut sum = ExactSum::default();
        let large = 2f64.powi(60);
        if owned.rank() == 0 {
            sum.add(&[1.0, large, 1.0 / large]).unwrap();
        } else {
            sum.add(&[-large]).unwrap();
        }
        owned.all_reduce(&mut sum.digits, Reduction::Sum).unwrap();
        assert_eq!(sum.value().unwrap(), 1.0); // 2^-60 is rounded away only here
        sum.add(&[-1.0]).unwrap();
        assert_eq!(sum.value().unwrap(), 1.0 / large);
        let error = sum.add(&[2f64.powi(94)]).unwrap_err();
        assert!(error.to_string().contains("too large"), "{}", error);
    });
}

#[test]
fn each_item_is_claimed_once() {
    ranks::run(2, |context| {
        let mut owned = context.begin().unwrap();
        let mut values = [0.0; 2];
        while let Some(item) = owned.claim(100).unwrap() {
            values[0] += 1.0;
            values[1] += item as f64;
        }
        assert_eq!(owned.claim(100).unwrap(), None);
        let claimed = owned.claims(0).unwrap();
        assert_eq!((claimed.len() as f64, claimed.iter().sum::<u64>() as f64), (values[0], values[1]));
        assert_eq!(owned.speeds().unwrap(), [1.0, 1.0]);
        let mut open = owned.publish().unwrap();
        open.report_cost(if open.rank() == 0 { 1.0 } else { 1e6 }).unwrap();
        let error = open.report_cost(-1.0).unwrap_err();
        assert!(error.to_string().contains("cost is -1"), "{}", error);
        let mut owned = open.sync_reduce(&mut values, Reduction::Sum).unwrap();
        assert_eq!(values, [100.0, 4950.0]);
        assert!((owned.speeds().unwrap().iter().sum::<f64>() - 2.0).abs() < 1e-12);
        let error = owned.claims(7).unwrap_err();
        assert!(error.to_string().contains("minibatch 7 are not kept"), "{}", error);
    });
}

#[test]
fn many_shards_are_registered_at_once_and_used_by_many_threads() {
    ranks::run(2, |context| {
        let mut owned = context.begin().unwrap();
        let descriptions: Vec<_> = (0..3).map(|i| Description::new(format!("layer.{}", i), 500)).collect();
        let mut layers = owned.register_all::<f64, f64>(&descriptions).unwrap();
        let open = owned.publish().unwrap();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for layer in &layers {
                        let mut full = vec![1.0; 500];
                        open.gather(layer, &mut full).unwrap();
                        assert_eq!(full, [0.0; 500]);
                        open.scatter_add(layer, &[0.25; 500]).unwrap();
                        let operation = open.scatter_add_start(layer, vec![0.5; 500]).unwrap();
                        std::thread::scope(|others| others.spawn(|| operation.wait().unwrap()).join().unwrap());
                    }
                });
            }
        });
        let mut owned = open.sync().unwrap();
        for layer in &mut layers {
            assert_eq!(owned.slice_mut(layer).unwrap().gradients, [6.0; 250]);
        }
        let stats = owned.stats().unwrap();
        assert_eq!((stats.gather_calls, stats.scatter_add_calls, stats.syncs), (12, 24, 1));
        assert_eq!(stats.gather_bytes, 12 * 4000);
    });
}
