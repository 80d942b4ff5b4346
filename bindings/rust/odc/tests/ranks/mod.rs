// SPDX-License-Identifier: Apache-2.0
//! Runs the ranks of a test as threads of this process, or as processes that are this test binary again.

#![allow(dead_code)] // each test binary uses a part

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use odc::{Config, Context, Error};

/// A unique job name.
pub fn new_job() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    format!("rust-test-{}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed), nanoseconds)
}

pub fn config_of(rank: i32, size: i32, job: &str) -> Config<'static> {
    Config::new().rank(rank, size).job(job).timeout(Duration::from_secs(20))
}

/// Each rank is a thread with a config of its own.
pub fn run_configs(size: i32, rank: impl Fn(i32, Config<'static>) + Sync) {
    let job = new_job();
    std::thread::scope(|threads| {
        for number in 0..size {
            let (rank, job) = (&rank, &job);
            threads.spawn(move || rank(number, config_of(number, size, job)));
        }
    });
}

/// Each rank is a thread with a context.
pub fn run(size: i32, rank: impl Fn(&mut Context) + Sync) {
    run_configs(size, |_, config| rank(&mut Context::join(config).unwrap()));
}

/// Runs the test `name` of this binary again as a rank that is a process: `as_child` is Some there.
pub fn spawn(name: &str, rank: i32, size: i32, job: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env("ODC_RUST_TEST_RANK", format!("{} {} {}", rank, size, job))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

pub fn as_child() -> Option<(i32, Config<'static>)> {
    let place = std::env::var("ODC_RUST_TEST_RANK").ok()?;
    let mut words = place.split(' ');
    let rank = words.next()?.parse().ok()?;
    let size = words.next()?.parse().ok()?;
    Some((rank, config_of(rank, size, words.next()?)))
}

/// One clear sentence that contains these texts.
#[track_caller]
pub fn assert_says(error: &Error, words: &[&str]) {
    let sentence = error.to_string();
    assert!(sentence.len() > 15 && !sentence.contains('\n'), "not one clear sentence: {:?}", sentence);
    for word in words {
        assert!(sentence.contains(word), "the error does not say {:?}: {:?}", word, error);
    }
}

/// The pattern of the error's variant, and texts in its sentence.
#[macro_export]
macro_rules! assert_error {
    ($result:expr, $variant:ident $(, $word:expr)* $(,)?) => {{
        let error = odc::Error::from($result.expect_err("it should have failed"));
        assert!(matches!(error, odc::Error::$variant(_)), "not {}: {:?}", stringify!($variant), error);
        ranks::assert_says(&error, &[$($word),*]);
        error
    }};
}

/// ODC_TEST_SEED, or a random seed; printed.
pub fn test_seed() -> u64 {
    let seed = match std::env::var("ODC_TEST_SEED") {
        Ok(given) => given.parse().expect("ODC_TEST_SEED is a number"),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 >> 8,
    };
    println!("seed: ODC_TEST_SEED={}", seed);
    seed
}

/// Pseudo-random numbers for a purpose.
pub fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |state: u64, &word| {
        let mut z = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
