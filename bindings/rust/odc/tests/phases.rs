// SPDX-License-Identifier: Apache-2.0
//! What the types cannot hold, and hold together with the library: the wrong moment is reported and changes nothing, and
//! no way leads to a slice that peers use.

mod ranks;

use std::path::Path;
use std::process::Command;

use odc::{
    Context, Description, Error, Failed, Gpu, Minibatch, Opening, Operation, Owned, Published, Reduction, Shard,
};

fn layer() -> Description {
    Description::new("layer", 100)
}

fn alone() -> Context {
    Context::join(ranks::config_of(0, 1, &ranks::new_job())).unwrap()
}

#[test]
fn contexts_and_all_of_theirs_may_be_handed_to_and_shared_by_threads_as_odc_h_says() {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Context>();
    is_send_and_sync::<Minibatch<'_, Owned>>();
    is_send_and_sync::<Minibatch<'_, Opening<'_>>>();
    is_send_and_sync::<Minibatch<'_, Published>>();
    is_send_and_sync::<Shard<'_, f32, f32>>();
    is_send_and_sync::<Shard<'_, (), f64, Gpu>>();
    is_send_and_sync::<Operation<'_, f32>>();
    is_send_and_sync::<odc::GpuOperation<'_>>();
    is_send_and_sync::<Error>();
    is_send_and_sync::<Failed<Minibatch<'_, Owned>>>();
}

#[test]
fn a_minibatch_that_was_dropped_open_is_not_begun_again() {
    let mut context = alone();
    for _ in 0..2 {
        assert_eq!(context.begin().unwrap().number(), 0); // nothing is published: it may be had again
    }
    let mut owned = context.begin().unwrap();
    owned.register::<f32, f32>(&layer()).unwrap();
    owned.publish().unwrap();
    assert_error!(context.begin(), Phase, "minibatch 0", "rank 0", "between publish and sync", "Minibatch::sync");
}

#[test]
fn a_minibatch_that_was_dropped_while_opening_is_not_begun_again() {
    let mut context = alone();
    assert_eq!(context.begin().unwrap().publish_each().number(), 0); // none is published yet
    let mut owned = context.begin().unwrap();
    let mut shard = owned.register::<f32, f32>(&layer()).unwrap();
    let mut opening = owned.publish_each();
    opening.publish(&mut shard).unwrap();
    assert_error!(context.begin(), Phase, "between publish and sync");
}

#[test]
fn shards_are_published_one_by_one() {
    ranks::run(2, |context| {
        let mut owned = context.begin().unwrap();
        let mut early = owned.register::<f32, f32>(&Description::new("early", 100)).unwrap();
        let mut late = owned.register::<f32, f32>(&Description::new("late", 100)).unwrap();
        let mut full = [0.0; 100];
        for minibatch in 1..4 {
            let mut opening = owned.publish_each();
            assert_error!(opening.gather(&early, &mut full), Phase, "publish", "early");
            assert_error!(opening.scatter_add(&early, &full), Phase, "publish", "early");
            let failed = opening.gather_start(&early, vec![5.0; 100]).unwrap_err();
            assert_eq!(failed.back, [5.0; 100]);
            assert_error!(Err::<(), _>(failed), Phase, "publish", "early");
            opening.slice_mut(&mut early).unwrap().parameters.fill(minibatch as f32);
            let early = opening.publish(&mut early).unwrap();
            opening.gather(early, &mut full).unwrap();
            assert_eq!(full, [minibatch as f32; 100]);
            opening.scatter_add(early, &full).unwrap();
            let slice = opening.slice_mut(&mut late).unwrap(); // its sums are still there
            assert_eq!(slice.gradients, [if minibatch > 1 { 2.0 } else { 0.0 }; 50]);
            slice.parameters.fill(-minibatch as f32);
            let mut open = opening.publish_rest().unwrap();
            open.gather(&late, &mut full).unwrap();
            assert_eq!(full, [-minibatch as f32; 100]);
            open.scatter_add(&late, &[1.0; 100]).unwrap();
            open.finish(&late).unwrap();
            assert_error!(open.scatter_add(&late, &[1.0; 100]), Phase, "odc_finish", "late");
            owned = open.sync().unwrap();
        }
        let opening = owned.publish_each();
        let mut opening = opening;
        opening.publish(&mut early).unwrap();
        opening.publish(&mut late).unwrap();
        let owned = opening.publish_rest().unwrap().sync().unwrap(); // there was no rest
        assert_eq!(owned.slice_mut(&mut early).unwrap().gradients, [0.0; 50]);
    });
}

#[test]
fn a_shard_registered_while_opening_is_published_with_the_rest() {
    ranks::run(2, |context| {
        let mut opening = context.begin().unwrap().publish_each();
        let shard = opening.register::<f64, f64>(&layer()).unwrap();
        let open = opening.publish_rest().unwrap();
        open.scatter_add(&shard, &[2.0; 100]).unwrap();
        let mut shard = shard;
        let owned = open.sync().unwrap();
        assert_eq!(owned.slice_mut(&mut shard).unwrap().gradients, [4.0; 50]);
    });
}

#[test]
fn a_shard_of_another_context_is_refused_everywhere() {
    let (mut here, mut there) = (alone(), alone());
    let mut owned = here.begin().unwrap();
    let mut other = there.begin().unwrap();
    let mut shard = other.register::<f32, f32>(&layer()).unwrap();
    let words = ["layer", "another context"];
    assert_error!(owned.slice_mut(&mut shard), Argument, words[0], words[1]);
    let failed = owned.release(shard).unwrap_err();
    assert!(matches!(failed.error, Error::Argument(_)));
    shard = failed.back;
    let mut opening = owned.publish_each();
    assert_error!(opening.slice_mut(&mut shard), Argument, words[0], words[1]);
    let failed = opening.publish(&mut shard).unwrap_err();
    assert!(matches!(failed.error, Error::Argument(_)));
    let shard = failed.back;
    let open = opening.publish_rest().unwrap();
    assert_error!(open.gather(shard, &mut [0.0; 100]), Argument, words[0], words[1]);
    assert_error!(open.scatter_add(shard, &[0.0; 100]), Argument, words[0], words[1]);
    assert_error!(open.gather_start(shard, vec![0.0; 100]), Argument, words[0], words[1]);
    assert_error!(open.scatter_add_start(shard, vec![0.0; 100]), Argument, words[0], words[1]);
}

#[test]
fn a_name_that_was_released_is_free_in_the_next_minibatch() {
    let mut context = alone();
    let mut owned = context.begin().unwrap();
    let shard = owned.register::<f32, f32>(&layer()).unwrap();
    assert_error!(owned.register::<f32, f32>(&layer()), Argument, "layer", "registered already");
    owned.release(shard).unwrap();
    assert_error!(owned.register::<f32, f32>(&layer()), Phase, "layer", "released");
    let mut owned = owned.publish().unwrap().sync().unwrap();
    let again = owned.register::<f64, ()>(&layer()).unwrap();
    assert_eq!(again.parameters(), [0.0; 100]);
}

#[test]
fn a_shard_that_was_dropped_stays_registered() {
    let mut context = alone();
    let mut owned = context.begin().unwrap();
    drop(owned.register::<f32, f32>(&layer()).unwrap());
    assert_error!(owned.register::<f32, f32>(&layer()), Argument, "layer", "registered already");
    owned.publish_each().publish_rest().unwrap().sync().unwrap();
}

#[test]
fn who_has_left_reads_so_and_keeps_the_slices() {
    let mut context = alone();
    let mut owned = context.begin().unwrap();
    let mut shard = owned.register::<f32, f32>(&layer()).unwrap();
    owned.slice_mut(&mut shard).unwrap().parameters.fill(4.0);
    let mut open = owned.publish().unwrap();
    let operation = open.gather_start(&shard, vec![0.0; 100]).unwrap();
    drop(operation);
    open.shutdown().unwrap();
    assert_error!(open.shutdown(), Phase, "left");
    assert_error!(open.abort("enough"), Phase, "left");
    assert_error!(open.gather(&shard, &mut [0.0; 100]), Phase, "left");
    let failed = open.sync().unwrap_err();
    assert_eq!(shard.parameters(), [4.0; 100]);
    assert_eq!(failed.back.number(), 0);
    assert_error!(Err::<(), _>(failed), Phase, "left");
}

#[test]
fn values_are_combined_where_nothing_is_published() {
    ranks::run(3, |context| {
        let mut owned = context.begin().unwrap();
        let mine = owned.rank() as f64;
        let mut values = [mine, -mine];
        owned.all_reduce(&mut values, Reduction::Max).unwrap();
        assert_eq!(values, [2.0, 0.0]);
        assert_error!(owned.all_reduce(&mut [0.0; 65], Reduction::Sum), Argument, "65", "64");
        assert_error!(owned.all_reduce(&mut [], Reduction::Sum), Argument, "0");
        let failed = owned.publish().unwrap().sync_reduce(&mut [0.0; 65], Reduction::Sum).unwrap_err();
        let mut owned = failed.back.sync_reduce(&mut values, Reduction::Sum).unwrap(); // nothing has changed
        assert_eq!(values, [6.0, 0.0]);
        owned.all_reduce(&mut values, Reduction::Sum).unwrap();
        assert_eq!(values, [18.0, 0.0]);
    });
}

/// If its memory were free, the next vectors would get it, and the gather would write into them.
#[test]
fn the_buffer_of_a_dropped_operation_is_the_librarys_until_the_sync() {
    let dropped = std::sync::Barrier::new(2);
    ranks::run(2, |context| {
        let mut owned = context.begin().unwrap();
        let mut shard = owned.register::<f32, f32>(&layer().slices([0, 100])).unwrap();
        if owned.rank() == 1 {
            dropped.wait(); // it is not published before
            owned.slice_mut(&mut shard).unwrap().parameters.fill(3.0);
            let owned = owned.publish().unwrap().sync().unwrap();
            assert_eq!(owned.slice_mut(&mut shard).unwrap().gradients, [5.0; 100]);
            return;
        }
        let open = owned.publish().unwrap();
        drop(open.gather_start(&shard, vec![0.0; 100]).unwrap());
        drop(open.scatter_add_start(&shard, vec![5.0; 100]).unwrap());
        let others: Vec<_> = (0..20).map(|_| vec![7.0f32; 100]).collect();
        dropped.wait();
        let _owned = open.sync().unwrap();
        assert_eq!(others, vec![vec![7.0; 100]; 20]);
    });
}

#[test]
fn a_released_shard_is_not_left_to_publish() {
    let mut context = alone();
    let mut owned = context.begin().unwrap();
    let mut kept = owned.register::<f32, f32>(&Description::new("kept", 10)).unwrap();
    let spent = owned.register::<f32, f32>(&layer()).unwrap();
    owned.release(spent).unwrap();
    let mut opening = owned.publish_each();
    opening.publish(&mut kept).unwrap();
    opening.publish_rest().unwrap().sync().unwrap();
}

/// Before libodc: the first publish publishes, if it is of all, and ends with ODC_RUST_TEST_STATUS.
const FAILING: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
static int calls;
static int status(void) { return calls++ == 0 ? atoi(getenv("ODC_RUST_TEST_STATUS")) : 0; }
static int real(const char *name, void *of, void *stream) {
    return ((int (*)(void *, void *))dlsym(RTLD_NEXT, name))(of, stream);
}
int odc_publish(void *shard, void *stream) {
    int failed = status();
    return failed ? failed : real("odc_publish", shard, stream);
}
int odc_publish_all(void *context, void *stream) {
    int failed = status(), ended = real("odc_publish_all", context, stream);
    return failed ? failed : ended;
}
"#;

/// Calls `test` with the status that the first publish fails with, in a process that is the test `name` again: one for each
/// status that does not say that nothing has changed.
fn where_the_first_publish_fails(name: &str, test: impl FnOnce(i32, Context)) {
    if let Ok(status) = std::env::var("ODC_RUST_TEST_STATUS") {
        return test(status.parse().unwrap(), alone());
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(ranks::new_job());
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("failing.c"), FAILING).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let made = Command::new(compiler)
        .args(["-shared", "-fPIC", "failing.c", "-o", "failing.so", "-ldl"])
        .current_dir(&folder)
        .status()
        .unwrap();
    assert!(made.success());
    for status in ["-3", "-5", "-6", "-8", "-99"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env("LD_PRELOAD", folder.join("failing.so"))
            .env("ODC_RUST_TEST_STATUS", status)
            .output()
            .unwrap();
        let passed = String::from_utf8_lossy(&output.stdout).contains("1 passed");
        assert!(output.status.success() && passed, "{}: {}", status, String::from_utf8_lossy(&output.stderr));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_publish_of_all_that_may_have_failed_halfway_gives_no_slice_back() {
    let name = "a_publish_of_all_that_may_have_failed_halfway_gives_no_slice_back";
    where_the_first_publish_fails(name, |status, mut context| {
        let mut owned = context.begin().unwrap();
        let mut shard = owned.register::<f32, f32>(&layer()).unwrap();
        let failed = owned.publish().unwrap_err();
        assert_eq!(failed.error.status(), status);
        assert_error!(failed.back.slice_mut(&mut shard), Phase, "minibatch 0", "perhaps halfway", "layer");
        let opening = failed.back.publish_each();
        assert_error!(opening.slice_mut(&mut shard), Phase, "perhaps halfway");
        assert_eq!(shard.parameters(), [0.0; 100]);
        assert_error!(context.begin(), Phase, "between publish and sync");
    });
}

#[test]
fn a_publish_of_one_that_may_have_failed_halfway_gives_slices_back_after_the_sync() {
    let name = "a_publish_of_one_that_may_have_failed_halfway_gives_slices_back_after_the_sync";
    where_the_first_publish_fails(name, |status, mut context| {
        let mut owned = context.begin().unwrap();
        let mut shard = owned.register::<f32, f32>(&layer()).unwrap();
        let mut other = owned.register::<f32, f32>(&Description::new("other", 100)).unwrap();
        let mut opening = owned.publish_each();
        let failed = opening.publish(&mut shard).unwrap_err();
        assert_eq!(failed.error.status(), status);
        assert_error!(opening.slice_mut(failed.back), Phase, "perhaps halfway", "layer");
        assert_error!(opening.slice_mut(&mut other), Phase, "perhaps halfway", "other");
        let owned = opening.publish_rest().unwrap().sync().unwrap();
        owned.slice_mut(&mut shard).unwrap().parameters.fill(1.0);
        owned.slice_mut(&mut other).unwrap().parameters.fill(1.0);
    });
}
