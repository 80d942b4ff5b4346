// SPDX-License-Identifier: Apache-2.0
//! The model: each of the last bytes is embedded, a hidden layer of tanh, and a softmax over the next byte.

const BYTES: usize = 256;
const CONTEXT: usize = 3;
const EMBEDDING: usize = 8;
const INPUTS: usize = CONTEXT * EMBEDDING;
const HIDDEN: usize = 32;

pub struct Layer {
    pub name: &'static str,
    pub numel: usize,
    scale: f32,
}

/// Matrices by rows, of one output each, then the biases.
pub const LAYERS: [Layer; 3] = [
    Layer { name: "embedding", numel: BYTES * EMBEDDING, scale: 1.0 },
    Layer { name: "hidden", numel: HIDDEN * INPUTS + HIDDEN, scale: 0.2 },
    Layer { name: "output", numel: BYTES * HIDDEN + BYTES, scale: 0.1 },
];

impl Layer {
    /// Uniform in -scale..scale, by the weight's index alone.
    pub fn first_weight(&self, place: usize) -> f32 {
        let mut z = (place as u64 + ((self.numel as u64) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let unit = (z >> 40) as f32 / (1u64 << 24) as f32;
        self.scale * (2.0 * unit - 1.0)
    }
}

/// A value for each weight.
pub struct Values {
    pub layers: [Vec<f32>; 3],
}

pub type Model = Values;
pub type Gradients = Values;

impl Default for Values {
    fn default() -> Self {
        Values { layers: LAYERS.map(|layer| vec![0.0; layer.numel]) }
    }
}

fn embedding_of(byte: u8) -> std::ops::Range<usize> {
    byte as usize * EMBEDDING..(byte as usize + 1) * EMBEDDING
}

impl Model {
    /// Adds the gradients of a text's loss, summed over its bytes, and returns the loss.
    pub fn add_gradients(&self, text: &[u8], gradients: &mut Gradients) -> f64 {
        let mut last = [0; CONTEXT]; // before a text there are zeros
        let mut loss = 0.0;
        for &next in text {
            loss += self.add_gradients_of_byte(last, next, gradients);
            last.rotate_left(1);
            last[CONTEXT - 1] = next;
        }
        loss
    }

    fn add_gradients_of_byte(&self, last: [u8; CONTEXT], next: u8, gradients: &mut Gradients) -> f64 {
        let [embedding, hidden, output] = &self.layers;
        let mut inputs = [0.0; INPUTS];
        for (input, byte) in inputs.chunks_exact_mut(EMBEDDING).zip(last) {
            input.copy_from_slice(&embedding[embedding_of(byte)]);
        }
        let mut activations = multiply::<INPUTS, HIDDEN>(hidden, &inputs);
        activations.iter_mut().for_each(|activation| *activation = activation.tanh());
        let mut scores = multiply::<HIDDEN, BYTES>(output, &activations);
        let largest = scores.iter().copied().fold(f32::MIN, f32::max);
        scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
        let total: f32 = scores.iter().sum();
        let probability = scores[next as usize] / total;
        // From here on the derivatives of the loss.
        scores.iter_mut().for_each(|score| *score /= total);
        scores[next as usize] -= 1.0;
        let [to_embedding, to_hidden, to_output] = &mut gradients.layers;
        let mut back = add_outer::<HIDDEN, BYTES>(output, &activations, &scores, to_output);
        back.iter_mut().zip(&activations).for_each(|(back, activation)| *back *= 1.0 - activation * activation);
        let back = add_outer::<INPUTS, HIDDEN>(hidden, &inputs, &back, to_hidden);
        for (back, byte) in back.chunks_exact(EMBEDDING).zip(last) {
            to_embedding[embedding_of(byte)].iter_mut().zip(back).for_each(|(to, back)| *to += back);
        }
        -f64::from(probability.max(f32::MIN_POSITIVE)).ln()
    }
}

fn multiply<const IN: usize, const OUT: usize>(layer: &[f32], inputs: &[f32; IN]) -> [f32; OUT] {
    let (rows, biases) = layer.split_at(IN * OUT);
    let mut outputs = [0.0; OUT];
    for ((output, row), bias) in outputs.iter_mut().zip(rows.chunks_exact(IN)).zip(biases) {
        *output = bias + row.iter().zip(inputs).map(|(weight, input)| weight * input).sum::<f32>();
    }
    outputs
}

/// Adds the gradients of a layer's weights, and returns those of its inputs.
fn add_outer<const IN: usize, const OUT: usize>(
    layer: &[f32],
    inputs: &[f32; IN],
    outputs: &[f32; OUT],
    gradients: &mut [f32],
) -> [f32; IN] {
    let (rows, biases) = gradients.split_at_mut(IN * OUT);
    let mut back = [0.0; IN];
    for (i, output) in outputs.iter().enumerate() {
        let place = i * IN..(i + 1) * IN;
        for ((gradient, weight), (input, back)) in
            rows[place.clone()].iter_mut().zip(&layer[place]).zip(inputs.iter().zip(&mut back))
        {
            *gradient += output * input;
            *back += output * weight;
        }
        biases[i] += output;
    }
    back
}
