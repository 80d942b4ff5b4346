// SPDX-License-Identifier: Apache-2.0
//! Every error that a user can get, by its variant and its text; nothing hangs.

mod ranks;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use odc::{Config, Context, Description, Error, Failed, LogLevel, Reduction};

fn layer() -> Description {
    Description::new("layer", 100)
}

fn alone() -> Context {
    Context::join(ranks::config_of(0, 1, &ranks::new_job())).unwrap()
}

#[test]
fn wrong_configs_are_refused() {
    assert_error!(Context::join(Config::new().rank(0, 0)), Argument, "0 ranks");
    assert_error!(Context::join(Config::new().rank(2, 2).job("x")), Argument, "rank 2");
    assert_error!(Context::join(Config::new().rank(-1, 2).job("x")), Argument, "-1");
    assert_error!(Context::join(Config::new().rank(0, 2).job("a\0b")), Argument, "job", "NUL", "byte 1");
    assert_error!(Context::join(Config::new().rank(0, 2).timeout(Duration::ZERO)), Argument, "timeout", "0ns");
    assert_error!(
        Context::join(Config::new().rank(0, 2).timeout(Duration::MAX)),
        Argument,
        "timeout",
        "1..1099511627776"
    );
    assert_error!(Context::join(Config::new().all_gather(|_, _| Ok(()))), Argument, "all_gather", "rank");
    assert_error!(Context::join(Config::new().rank(0, 2).rendezvous("nowhere").secret("s")), Argument, "nowhere");
}

#[test]
fn wrong_descriptions_are_refused() {
    let mut context = alone();
    let mut owned = context.begin().unwrap();
    let mut refused = |description: Description, words: &[&str]| {
        let error = owned.register::<f32, f32>(&description).unwrap_err();
        assert!(matches!(error, Error::Argument(_)), "{:?}", error);
        ranks::assert_says(&error, words);
    };
    refused(Description::new("", 10), &["name"]);
    refused(Description::new("n".repeat(256), 10), &["name", "255"]);
    refused(Description::new("a\0b", 10), &["NUL", "byte 1"]);
    refused(layer().ranks([0, 0]), &["layer", "rank_count is 2"]);
    refused(layer().ranks([1]), &["layer", "1"]);
    refused(layer().ranks([]), &["layer"]);
    refused(layer().slices([99]), &["layer", "99"]);
    refused(layer().slices([50, 50]), &["layer", "2 slices", "1 ranks"]);
    assert_error!(owned.register_all::<f32, f32>(&[]), Argument, "count");
    assert_error!(owned.register_all::<f32, f32>(&[layer(), layer()]), Argument, "layer");
    assert_error!(owned.register::<(), ()>(&layer()), Argument, "layer");
    owned.register::<f32, f32>(&layer()).unwrap(); // none of those was
}

#[test]
fn wrong_buffers_are_refused_and_given_back() {
    let mut context = alone();
    let mut owned = context.begin().unwrap();
    let mut shard = owned.register::<f32, f32>(&layer()).unwrap();
    let open = owned.publish().unwrap();
    for numel in [0, 99, 101] {
        let words = [numel.to_string(), "100".to_string(), "layer".to_string()];
        let words = [words[0].as_str(), &words[1], &words[2]];
        assert_error!(open.gather(&shard, &mut vec![0.0; numel]), Argument, words[0], words[1], words[2]);
        assert_error!(open.scatter_add(&shard, &vec![1.0; numel]), Argument, words[0], words[1], words[2]);
        let failed = open.gather_start(&shard, vec![2.0; numel]).unwrap_err();
        assert_eq!(failed.back, vec![2.0; numel]);
        let failed = open.scatter_add_start(&shard, vec![2.0; numel]).unwrap_err();
        assert_eq!((failed.error.status(), failed.back), (-1, vec![2.0; numel]));
    }
    let owned = open.sync().unwrap();
    assert_eq!(owned.slice_mut(&mut shard).unwrap().gradients, [0.0; 100]);
}

#[test]
fn a_shard_that_is_too_large_is_refused_with_both_numbers() {
    let mut context = alone();
    let mut owned = context.begin().unwrap();
    let error = owned.register::<u8, ()>(&Description::new("huge", 1 << 50)).unwrap_err();
    assert!(matches!(error, Error::NoMemory(_)), "{:?}", error);
    ranks::assert_says(&error, &[&(1u64 << 50).to_string()[..5], "available"]);
}

#[test]
fn gpu_memory_without_a_gpu_is_refused_in_words() {
    let mut context = alone();
    let mut owned = context.begin().unwrap();
    let error = owned.register_all_on_gpu::<f32, f32>(&[layer()]).unwrap_err();
    assert!(!error.is_job_error(), "{:?}", error);
    ranks::assert_says(&error, &["layer", "GPU"]);
    let stream = &mut 0 as *mut i32;
    // SAFETY: refused, not used.
    let failed = unsafe { owned.publish_on(stream.cast()) }.unwrap_err();
    assert!(matches!(failed.error, Error::Unsupported(_)), "{:?}", failed);
    failed.back.publish().unwrap().sync().unwrap();
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let config = ranks::config_of(1, 3, &ranks::new_job()).timeout(Duration::from_millis(300));
    let begin = Instant::now();
    assert_error!(Context::join(config), Rendezvous, "rank");
    assert!(begin.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_peer_that_leaves_or_aborts_ends_the_others_waits_with_an_error() {
    ranks::run(3, |context| {
        let mut owned = context.begin().unwrap();
        let shard = owned.register::<f32, f32>(&layer()).unwrap();
        if owned.rank() == 1 {
            return; // leaves
        }
        let open = owned.publish().unwrap();
        let error = assert_error!(open.gather(&shard, &mut [0.0; 100]), PeerLost, "rank 1", "left", "minibatch 0");
        assert!(error.is_job_error());
        let failed = open.sync().unwrap_err();
        assert_eq!(failed.error, error); // it is permanent, with its text
        assert_eq!(shard.parameters().len(), shard.range().len()); // and slices stay
    });
    ranks::run(3, |context| {
        let mut owned = context.begin().unwrap();
        owned.register::<f32, f32>(&layer()).unwrap();
        if owned.rank() == 1 {
            owned.abort("the loss is \"NaN\"").unwrap();
            assert_error!(owned.abort("a\0b"), Argument, "NUL", "byte 1");
            return;
        }
        let ended = owned.publish().map_err(Error::from).and_then(|open| open.sync().map(drop).map_err(Error::from));
        assert_error!(ended, Aborted, "rank 1", "the loss is \"NaN\"");
    });
}

#[test]
fn a_panic_aborts_the_job() {
    let job = ranks::new_job();
    std::thread::scope(|threads| {
        let panicking = threads.spawn(|| {
            let mut context = Context::join(ranks::config_of(0, 2, &job)).unwrap();
            let _owned = context.begin().unwrap();
            panic!("meant");
        });
        let mut context = Context::join(ranks::config_of(1, 2, &job)).unwrap();
        let ended = context.begin().unwrap().publish().map_err(Error::from);
        let ended = ended.and_then(|open| open.sync().map(drop).map_err(Error::from));
        assert_error!(ended, Aborted, "rank 0", "panicked");
        assert!(panicking.join().is_err());
    });
}

#[test]
fn a_rank_that_is_late_beyond_the_deadline_is_named() {
    let together = Barrier::new(2);
    ranks::run_configs(2, |rank, config| {
        let mut context =
            Context::join(config.timeout(Duration::from_millis(if rank == 0 { 300 } else { 20_000 }))).unwrap();
        let mut owned = context.begin().unwrap();
        let shard = owned.register::<f32, f32>(&layer()).unwrap();
        if rank == 0 {
            let open = owned.publish().unwrap();
            assert_error!(open.gather(&shard, &mut [0.0; 100]), Timeout, "rank 1", "published", "layer", "minibatch 0");
            together.wait();
        } else {
            together.wait();
            let failed = owned.publish().unwrap().sync().unwrap_err(); // the late rank gets the error, too
            assert_error!(Err::<(), _>(failed.error), Timeout, "rank 1", "layer");
        }
    });
}

#[test]
fn after_a_publish_that_ended_in_a_job_error_slices_can_be_read_only() {
    let mut context = alone();
    let mut owned = context.begin().unwrap();
    let mut shard = owned.register::<f32, f32>(&layer()).unwrap();
    owned.slice_mut(&mut shard).unwrap().parameters.fill(2.0);
    owned.abort("enough").unwrap();
    let failed = owned.publish().unwrap_err();
    assert!(matches!(failed.error, Error::Aborted(_)), "{:?}", failed);
    assert_error!(failed.back.slice_mut(&mut shard), Phase, "perhaps halfway", "layer", "Shard::parameters");
    assert_eq!(shard.parameters(), [2.0; 100]);
}

#[test]
fn ranks_that_disagree_are_both_named() {
    ranks::run(2, |context| {
        let mut owned = context.begin().unwrap();
        let numel = 100 + owned.rank() as usize;
        let shard = owned.register::<f32, f32>(&Description::new("layer", numel)).unwrap();
        let ended = owned.publish().map_err(Error::from).and_then(|open| open.gather(&shard, &mut vec![0.0; numel]));
        assert_error!(ended, Mismatch, "layer", "rank 0", "rank 1", "100", "101");
    });
    ranks::run(2, |context| {
        let mut owned = context.begin().unwrap();
        let mut values = vec![1.0; 1 + owned.rank() as usize];
        assert_error!(owned.all_reduce(&mut values, Reduction::Sum), Mismatch, "odc_all_reduce", "rank 0", "rank 1");
    });
}

#[test]
fn a_process_that_dies_is_named() {
    if let Some((rank, config)) = ranks::as_child() {
        let mut context = Context::join(config).unwrap();
        let open = context.begin().unwrap().publish().unwrap();
        if rank == 1 {
            std::process::abort();
        }
        let error = open.sync().unwrap_err().error;
        assert!(matches!(error, Error::PeerLost(_)), "{:?}", error);
        ranks::assert_says(&error, &["rank 1", "died"]);
        return;
    }
    let job = ranks::new_job();
    let children = [0, 1, 2].map(|rank| ranks::spawn("a_process_that_dies_is_named", rank, 3, &job));
    for (rank, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.success(), rank != 1, "rank {}: {}", rank, String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_log_goes_to_a_callback_that_may_panic() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&lines);
    let config = Config::new().rank(0, 1).log_level(LogLevel::Info).log(move |level, line| {
        assert_eq!(level, LogLevel::Info);
        kept.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_string());
        panic!("it concerns nobody");
    });
    drop(Context::join(config).unwrap());
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(lines[0].contains(" odc info rank=0/1 host=") && lines[0].contains("joins a job"), "{}", lines[0]);
    assert!(lines.iter().any(|line| line.contains("has joined after")));
}

/// A config that is interrupted while the flag says so.
fn interruptible(config: Config<'static>, stop: &Arc<AtomicBool>) -> Config<'static> {
    let stop = stop.clone();
    config.interrupted(move || stop.load(SeqCst))
}

fn wait_for(flag: &AtomicUsize, at_least: usize) {
    let begin = Instant::now();
    while flag.load(SeqCst) < at_least {
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_interrupted_wait_may_be_taken_up_again() {
    let go = AtomicUsize::new(0); // how many of its waits rank 0 has been interrupted in
    ranks::run_configs(2, |rank, config| {
        let stop = Arc::new(AtomicBool::new(false));
        let mut context = Context::join(interruptible(config, &stop)).unwrap();
        let mut owned = context.begin().unwrap();
        let shard = owned.register::<f32, f32>(&layer()).unwrap();
        if rank == 1 {
            wait_for(&go, 1);
            owned.all_reduce(&mut [1.0], Reduction::Sum).unwrap();
            wait_for(&go, 3);
            let open = owned.publish().unwrap();
            wait_for(&go, 4);
            open.scatter_add(&shard, &[1.0; 100]).unwrap();
            open.sync().unwrap();
            return;
        }
        let interrupted = |rest: bool| {
            go.fetch_add(1, SeqCst);
            stop.store(!rest, SeqCst);
        };
        let mut values = [2.0];
        stop.store(true, SeqCst);
        assert_error!(owned.all_reduce(&mut values, Reduction::Sum), Interrupted, "odc_all_reduce");
        let failed = owned.publish().unwrap_err();
        let mut owned = failed.back;
        assert_error!(Err::<(), _>(failed.error), Phase, "odc_all_reduce", "again");
        interrupted(true);
        owned.all_reduce(&mut values, Reduction::Sum).unwrap();
        assert_eq!(values, [3.0]);
        let mut shard = shard;
        owned.slice_mut(&mut shard).unwrap().parameters.fill(1.0); // it is still this rank's
        stop.store(true, SeqCst);
        let open = owned.publish().unwrap();
        assert_error!(open.gather(&shard, &mut [0.0; 100]), Interrupted, "odc_gather");
        interrupted(false);
        let operation = open.gather_start(&shard, vec![7.0; 100]).unwrap();
        let Failed { error, back } = operation.wait().unwrap_err();
        let operation = back.expect("it may be waited for again");
        assert_error!(Err::<(), _>(error), Interrupted, "odc_gather");
        interrupted(true);
        let full = operation.wait().unwrap();
        assert_eq!((full[0], full[99]), (1.0, 0.0));
        stop.store(true, SeqCst);
        let failed = open.sync().unwrap_err();
        let open = failed.back;
        assert_error!(Err::<(), _>(failed.error), Interrupted, "odc_minibatch_sync");
        assert_error!(open.gather(&shard, &mut [0.0; 100]), Phase, "odc_minibatch_sync", "again");
        interrupted(true);
        let owned = open.sync().unwrap();
        assert_eq!(owned.slice_mut(&mut shard).unwrap().gradients, [1.0; 50]);
    });
}

#[test]
fn what_is_thrown_in_a_callback_goes_on_in_the_caller() {
    let job = ranks::new_job();
    let config = ranks::config_of(0, 2, &job).interrupted(|| panic!("Ctrl-C, say"));
    let thrown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Context::join(config))).unwrap_err();
    assert_eq!(thrown.downcast_ref::<&str>(), Some(&"Ctrl-C, say"));
    let config = ranks::config_of(0, 2, &job).all_gather(|_, _| panic!("no network, say"));
    let thrown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Context::join(config))).unwrap_err();
    assert_eq!(thrown.downcast_ref::<&str>(), Some(&"no network, say"));
}

#[test]
fn a_wait_whose_callback_panics_can_be_made_again() {
    let go = AtomicUsize::new(0); // how far rank 1 may go
    ranks::run_configs(2, |rank, config| {
        let angry = Arc::new(AtomicBool::new(false));
        let asked = angry.clone();
        let config = config.interrupted(move || {
            assert!(!asked.swap(false, SeqCst), "Ctrl-C, say");
            false
        });
        let mut context = Context::join(config).unwrap();
        let mut owned = context.begin().unwrap();
        let shard = owned.register::<f32, f32>(&layer()).unwrap();
        let mut values = [1.0];
        if rank == 1 {
            wait_for(&go, 1);
            owned.all_reduce(&mut values, Reduction::Sum).unwrap();
            wait_for(&go, 2);
            owned.publish().unwrap().sync().unwrap();
            return;
        }
        let panics = |call: &mut dyn FnMut() -> Result<(), Error>| {
            angry.store(true, SeqCst);
            let thrown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
            assert_eq!(thrown.downcast_ref::<&str>(), Some(&"Ctrl-C, say"));
        };
        panics(&mut || owned.all_reduce(&mut values, Reduction::Sum));
        go.store(1, SeqCst);
        owned.all_reduce(&mut values, Reduction::Sum).unwrap();
        assert_eq!(values, [2.0]);
        let open = owned.publish().unwrap();
        panics(&mut || open.gather(&shard, &mut [0.0; 100]));
        panics(&mut || open.scatter_add(&shard, &[1.0; 100]));
        go.store(2, SeqCst);
        open.gather(&shard, &mut [0.0; 100]).unwrap();
        open.scatter_add(&shard, &[1.0; 100]).unwrap();
        let (owned, mut shard) = (open.sync().unwrap(), shard);
        assert_eq!(owned.slice_mut(&mut shard).unwrap().gradients, [1.0; 50]); // added once
    });
}

#[test]
fn ranks_meet_by_a_callback_whose_failure_keeps_its_text() {
    const SIZE: usize = 3;
    let (board, written, read) = (Mutex::new(vec![Vec::new(); SIZE]), Barrier::new(SIZE), Barrier::new(SIZE));
    ranks::run_configs(SIZE as i32, |rank, _| {
        let mut calls = 0;
        let config = Config::new().rank(rank, SIZE as i32).timeout(Duration::from_secs(20)).all_gather(|mine, all| {
            calls += 1;
            board.lock().unwrap()[rank as usize] = mine.to_vec();
            written.wait();
            all.copy_from_slice(&board.lock().unwrap().concat());
            read.wait();
            Ok(())
        });
        let mut context = Context::join(config).unwrap();
        assert!(calls > 0);
        let owned = context.begin().unwrap().publish().unwrap().sync().unwrap();
        assert_eq!((owned.rank(), owned.size(), owned.number()), (rank, SIZE as i32, 1));
    });
    let config = Config::new().rank(0, 2).all_gather(|_, _| Err("the store is gone".into()));
    assert_error!(Context::join(config), Rendezvous, "all_gather", "the store is gone");
}

#[test]
fn an_error_is_boxed_by_a_question_mark() {
    fn run(context: &mut Context) -> Result<(), Box<dyn std::error::Error>> {
        let mut owned = context.begin()?;
        owned.register::<f32, f32>(&layer())?;
        let mut open = owned.publish()?;
        open.shutdown()?;
        open.sync()?;
        Ok(())
    }
    let error = run(&mut alone()).unwrap_err();
    assert!(matches!(error.downcast_ref::<Error>(), Some(Error::Phase(_))), "{:?}", error);
}
