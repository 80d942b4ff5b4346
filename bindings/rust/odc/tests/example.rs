// SPDX-License-Identifier: Apache-2.0
//! The example: four ranks with different numbers of microbatches train as one does.
//!
//! Losses and weights need not be the same bits: four ranks add the same gradients in another order, in f32, whose unit in
//! the last place is 6e-8 of a value. Weights are about 1 and got a dozen steps; 1e-5 is a hundred times what was seen.

mod ranks;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MINIBATCHES: usize = 12;
const WEIGHTS_TOLERANCE: f32 = 1e-5;
const LOSS_TOLERANCE: f64 = 1e-6; // relative

fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(Path::parent).unwrap().join("examples/train");
    assert!(program.exists(), "there is no {}; cargo build --example train makes it", program.display());
    program
}

/// By the command that ODC names, else by `odc` of the path. Only without both are the ranks left out.
fn odc_run(size: usize, arguments: &[&str]) -> Option<Output> {
    let named = std::env::var_os("ODC");
    let command = named.clone().unwrap_or_else(|| "odc".into());
    let output =
        Command::new(&command).args(["run", "-n", &size.to_string(), "--"]).arg(example()).args(arguments).output();
    match (output, named) {
        (Ok(output), _) => Some(output),
        (Err(error), None) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: ODC names no odc command, and none is in the path");
            None
        }
        (Err(error), None) => panic!("the odc of the path cannot be run: {}", error),
        (Err(error), Some(named)) => panic!("ODC names {:?}, which cannot be run: {}", named, error),
    }
}

/// Any figure for any other: `loss 5.1 a byte` and `loss 4.9 a byte` are the same.
fn shape(line: &str) -> String {
    let figures = line.split(' ').map(|word| word.trim_matches(|c: char| c.is_ascii_digit() || c == '.'));
    figures.collect::<Vec<_>>().join(" ")
}

/// The output that the head of the example shows.
fn shown() -> Vec<&'static str> {
    let source = include_str!("../examples/train/main.rs");
    source
        .lines()
        .take_while(|line| !line.starts_with("mod "))
        .filter_map(|line| line.strip_prefix("//!     ["))
        .collect()
}

struct Trained {
    losses: Vec<f64>,
    microbatches: Vec<Vec<usize>>,
    weights: Vec<f32>,
}

fn train(size: usize, data: &[&str]) -> Option<Trained> {
    let save = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("weights {}", ranks::new_job()));
    let minibatches = MINIBATCHES.to_string();
    let mut arguments = vec!["--minibatches", &minibatches, "--save", save.to_str().unwrap()];
    arguments.extend(data);
    let output = odc_run(size, &arguments)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let words = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = words.lines().collect();
    assert_eq!(lines.len(), MINIBATCHES, "{}", words);
    if size == 4 {
        assert!(!shown().is_empty());
        let printed = lines.iter().map(|line| line.strip_prefix('[').unwrap());
        assert!(printed.zip(shown().iter().cycle()).all(|(line, wanted)| shape(line) == shape(wanted)), "{}", words);
    }
    let after = |line: &str, what: &str| line.split_once(what).unwrap().1.trim().to_string();
    let numbers = |line: &&str| after(line, "by rank ").split(' ').map(|word| word.parse().unwrap()).collect();
    let loss = |line: &&str| after(line, "loss ").split(' ').next().unwrap().parse().unwrap();
    let bytes = std::fs::read(&save).unwrap();
    std::fs::remove_file(&save).unwrap();
    Some(Trained {
        losses: lines.iter().map(loss).collect(),
        microbatches: lines.iter().map(numbers).collect(),
        weights: bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect(),
    })
}

fn four_ranks_train_as_one(data: &[&str]) {
    let (one, four) = match (train(1, data), train(4, data)) {
        (Some(one), Some(four)) => (one, four),
        _ => return,
    };
    assert!(four.microbatches.iter().all(|counts| counts.len() == 4));
    assert!(four.microbatches.iter().any(|counts| counts.iter().any(|count| count != &counts[0])), "all are even");
    assert!(one.losses[MINIBATCHES - 1] < one.losses[0] - 0.2, "nothing is learnt: {:?}", one.losses);
    let relative = |(one, four): (&f64, &f64)| (one - four).abs() / one;
    let loss = one.losses.iter().zip(&four.losses).map(relative).fold(0.0, f64::max);
    assert_eq!(one.weights.len(), four.weights.len());
    let distances = one.weights.iter().zip(&four.weights).map(|(one, four)| (one - four).abs());
    let weights = distances.fold(0.0, |largest, distance| if distance <= largest { largest } else { distance });
    println!("differences: losses {:e} relative, weights {:e}", loss, weights);
    assert!(loss <= LOSS_TOLERANCE && weights <= WEIGHTS_TOLERANCE, "losses {:e}, weights {:e}", loss, weights);
}

#[test]
fn four_ranks_train_as_one_on_pythons_library() {
    let python = Command::new("python3").args(["-c", "import sysconfig"]).output();
    if python.map_or(false, |output| output.status.success()) {
        four_ranks_train_as_one(&[]);
    } else {
        println!("skipped: python3, whose library is the text, cannot be run");
    }
}

#[test]
fn four_ranks_train_as_one_on_a_folder() {
    four_ranks_train_as_one(&["--data", concat!(env!("CARGO_MANIFEST_DIR"), "/src")]);
}

#[test]
fn unusable_gpus_are_explained() {
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("empty {}", ranks::new_job()));
    std::fs::create_dir_all(&empty).unwrap();
    let empty = empty.to_str().unwrap();
    for (arguments, words) in [
        (&["--data", "/no/such"][..], "/no/such cannot be read"),
        (&["--data", empty], "has no text to train on"),
        (&["--minibatches", "many"], "--minibatches wants a number, not \"many\""),
        (&["--save"], "--save wants a value"),
        (&["--minibatch"], "--minibatch is no option; there are --data FOLDER"),
    ] {
        if let Some(output) = odc_run(1, arguments) {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && said.contains(words), "{:?} is not in: {}", words, said);
        }
    }
    std::fs::remove_dir(empty).unwrap();
    if let Some(output) = odc_run(1, &["--help"]) {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("train options: --data FOLDER"), "{}", said);
    }
}
