// SPDX-License-Identifier: Apache-2.0
//! The loaded library: one of another version, none, and the results of the right one.

mod ranks;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use odc::{Config, Context, Cost, Description, Lookahead, Policy, Version};

/// Runs this test binary again, with libodc from `folder` only.
fn run_with(folder: &Path, test: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("LD_LIBRARY_PATH", folder)
        .env("ODC_RUST_TEST_LIBRARY", folder)
        .output()
        .unwrap()
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{}", name, std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A libodc.so.0 of another version, whose every other function fails the test that calls it.
fn make_fake(folder: &Path, version: &str, names: &[&str]) {
    let mut source = format!("#include <stdlib.h>\nunsigned odc_version(void) {{ return {}; }}\n", version);
    for name in names.iter().filter(|&&name| name != "odc_version") {
        source.extend(["void ", name, "(void) { abort(); }\n"]);
    }
    std::fs::write(folder.join("fake.c"), source).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let made = Command::new(compiler)
        .args(["-shared", "-fPIC", "-Wl,-soname,libodc.so.0", "fake.c", "-o", "libodc.so.0"])
        .current_dir(folder)
        .status()
        .unwrap();
    assert!(made.success());
}

fn functions() -> Vec<&'static str> {
    let declared = include_str!("../../odc-sys/src/lib.rs").split("pub fn ").skip(1);
    declared.map(|item| item.split('(').next().unwrap()).collect()
}

#[test]
fn a_library_of_another_version_is_refused_before_anything_else_of_it_is_called() {
    if let Some(folder) = std::env::var_os("ODC_RUST_TEST_LIBRARY") {
        let file = Path::new(&folder).join("libodc.so.0");
        let found = format!("libodc {} was loaded from {},", Version::found(), file.display());
        let needed = "was written for libodc 0.1.0 and needs 0.1 or a later 0.x";
        let error = assert_error!(Context::join(Config::new()), Unsupported, &found, needed, "LD_LIBRARY_PATH");
        assert_eq!(odc::check_library(), Err(error.clone()));
        assert_eq!(odc::build(), Err(error.clone()));
        assert_eq!(odc::transports(), Err(error.clone()));
        assert_eq!(odc::settings(), Err(error.clone()));
        assert_eq!(odc::topology(None), Err(error.clone()));
        assert_eq!(Cost::of_model("7b"), Err(error.clone()));
        assert_eq!(odc::plan(&[1], 1, 1, Policy::LbMini, Cost::LINEAR), Err(error.clone()));
        println!("{}", error);
        return;
    }
    let folder = scratch("another version");
    for (number, version) in [("7 << 16 | 2 << 8 | 5", "7.2.5"), ("9", "0.0.9")] {
        make_fake(&folder, number, &functions());
        let test = "a_library_of_another_version_is_refused_before_anything_else_of_it_is_called";
        let output = run_with(&folder, test);
        let words = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}{}", words, String::from_utf8_lossy(&output.stderr));
        assert!(words.contains(&format!("libodc {} was loaded from", version)), "{}", words);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The dynamic linker's errors that the README shows.
#[test]
fn a_library_that_is_not_there_or_lacks_a_function_is_the_dynamic_linkers_to_report() {
    let folder = scratch("lacks a function");
    let test = "the_right_one_is_taken";
    let without: Vec<_> = functions().into_iter().filter(|&name| name != "odc_get_topology").collect();
    make_fake(&folder, "1 << 8", &without);
    let output = run_with(&folder, test);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(words.contains("undefined symbol: odc_get_topology, version ODC_0.1"), "{}", words);
    std::fs::remove_file(folder.join("libodc.so.0")).unwrap();
    let output = run_with(&folder, test);
    let words = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        println!("skipped: a libodc is installed here, so none is missing");
    } else {
        let wanted = "error while loading shared libraries: libodc.so.0: cannot open shared object file";
        assert!(words.contains(wanted), "{}", words);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_right_one_is_taken() {
    odc::check_library().unwrap();
    assert_eq!(Version::found(), Version::NEEDED);
    assert_eq!(Version::NEEDED.to_string(), env!("CARGO_PKG_VERSION"));
    assert!(odc::library_path().contains("libodc.so"), "{}", odc::library_path());
    assert!(odc::build().unwrap().starts_with(&format!("libodc {}", Version::found())));
}

#[test]
fn tables_and_topology_are_reported() {
    let transports = odc::transports().unwrap();
    let names: Vec<_> = transports.iter().map(|one| one.name.as_str()).collect();
    assert!(names.starts_with(&["cuda", "shm"]) && names.contains(&"fabric"), "{:?}", names);
    assert_eq!(transports[1].why_not, None);
    let settings = odc::settings().unwrap();
    let timeout = settings.iter().find(|one| one.name == "ODC_TIMEOUT_MS").unwrap();
    assert!(timeout.fallback.contains("600") && !timeout.help.is_empty(), "{:?}", timeout);
    let here = odc::topology(None).unwrap();
    assert!(here.json.trim_start().starts_with('{') && here.xml.contains("<topology"), "{:?}", here);
    let folder = scratch("topology");
    let file = folder.join("here.xml");
    std::fs::write(&file, &here.xml).unwrap();
    assert!(odc::topology(Some(&file)).unwrap().json.trim_start().starts_with('{'));
    std::fs::write(&file, "<no machine").unwrap();
    assert_error!(odc::topology(Some(&file)), Argument, "here.xml");
    assert_error!(odc::topology(Some(Path::new("a\0b"))), Argument, "NUL");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn routes_and_statistics_are_reported() {
    ranks::run(2, |context| {
        let mut owned = context.begin().unwrap();
        let peer = 1 - owned.rank();
        let route = owned.route(peer).unwrap();
        assert_eq!((route.transport.as_str(), route.access.as_str(), route.nic.as_str()), ("shm", "direct", ""));
        assert!(!route.why.is_empty());
        assert_error!(owned.route(2), Argument, "2");
        assert!(owned.route_to_gpu(peer).map_or(true, |route| route.access == "none"));
        owned.register::<f32, f32>(&Description::new("layer", 100)).unwrap();
        assert!(owned.stats().unwrap().slice_bytes >= 400);
        let mut owned = owned.publish().unwrap().sync().unwrap();
        assert_eq!(owned.stats().unwrap().syncs, 1);
        let last: u64 = (0..2).map(|rank| owned.peer_stats(rank).unwrap().sync_last).sum();
        assert_eq!(last, 1);
        assert_error!(owned.peer_stats(-1), Argument, "-1");
    });
}

/// Every sample once, in contiguous microbatches within the budget; costs as reported.
#[test]
fn a_plan_keeps_its_promises() {
    let seed = ranks::test_seed();
    for round in 0..50 {
        let random = |what: u64, below: u64| ranks::mix(&[seed, round, what]) % below;
        let (ranks, count, budget) = (1 + random(0, 6) as i32, 1 + random(1, 60), 1000);
        let count = if round % 3 == 0 { count * ranks as u64 } else { count };
        let lengths: Vec<u64> = (0..count).map(|i| 1 + random(100 + i, budget)).collect();
        let cost = Cost { a: random(2, 3) as f64, b: 1.0 };
        let plan = odc::plan(&lengths, ranks, budget, Policy::LbMini, cost).unwrap();
        let mut seen = vec![0; lengths.len()];
        let mut makespan: f64 = 0.0;
        for rank in 0..ranks {
            let mut total = 0.0;
            for microbatch in plan.microbatches(rank) {
                assert!(!microbatch.is_empty());
                assert!(microbatch.iter().map(|&sample| lengths[sample]).sum::<u64>() <= budget);
                microbatch.iter().for_each(|&sample| seen[sample] += 1);
                let x = |sample: usize| lengths[sample] as f64 / 32000.0;
                total += microbatch.iter().map(|&s| cost.a * x(s) * x(s) + cost.b * x(s)).sum::<f64>();
            }
            makespan = makespan.max(total);
        }
        assert_eq!(seen, vec![1; lengths.len()]);
        assert!((plan.makespan - makespan).abs() <= 1e-9 * makespan, "{} {}", plan.makespan, makespan);
        assert!(plan.lower_bound <= plan.makespan * (1.0 + 1e-12));
    }
    let sorted = odc::plan(&[5, 7, 6, 8], 2, 10, Policy::LocalSort, Cost::LINEAR).unwrap();
    assert!((0..2).all(|rank| sorted.microbatches(rank).iter().all(|one| one.len() == 1)));
    // Two long samples meet in one minibatch.
    let lengths = [60000, 1000, 1000, 1000, 60000, 1000, 1000, 1000];
    let window = |counts: &[u64], lookahead| {
        odc::plan_window(&lengths, counts, 2, 65536, Policy::LbMini, Cost::LINEAR, lookahead)
    };
    let generous = Lookahead::Exchanged { most_moved: 1.0, most_displacement: 1.0 };
    for lookahead in [generous, Lookahead::Sorted] {
        let made = window(&[4, 4], lookahead).unwrap();
        let of = |minibatch| -> Vec<u64> {
            let ranks = (0..2).flat_map(|rank| made.microbatches(minibatch, rank)).flatten();
            ranks.map(|&sample| lengths[sample]).collect()
        };
        assert_eq!(of(0).len() + of(1).len(), lengths.len());
        assert_eq!([0, 1].map(|m| of(m).iter().filter(|&&length| length == 60000).count()).iter().max(), Some(&2));
        assert!(made.makespan < 0.6 * made.makespan_before && made.lower_bound <= made.makespan);
        assert!(made.moved > 0.0 && made.displacement > 0.0 && made.tokens == 63000.0);
    }
    assert!(window(&[4, 4], Lookahead::default()).unwrap().moved <= 0.2);
    assert_error!(window(&[4, 3], Lookahead::default()), Argument, "7 samples");
    let most = odc::plan(&[5, 7], i32::MAX, 10, Policy::LbMini, Cost::LINEAR).unwrap(); // most ranks stay idle
    let mut first = [most.microbatches(0), most.microbatches(1)].concat();
    first.sort();
    assert_eq!(first, [[0], [1]]);
    for idle in [2, i32::MAX, -1] {
        assert!(most.microbatches(idle).is_empty());
    }
    let claimed = odc::plan_by_speed(&[5, 7, 6, 8], &[1.0, 0.5], 20, Cost::LINEAR, 0.5).unwrap();
    let mut samples = claimed.items.concat();
    assert!(!samples.is_empty());
    samples.extend((0..2).flat_map(|rank| claimed.microbatches(rank).concat()));
    samples.sort_unstable();
    assert_eq!(samples, [0, 1, 2, 3]);
    assert_error!(odc::plan_by_speed(&[5], &[1.0], 20, Cost::LINEAR, 2.0), Argument, "`tail` is 2");
    assert_error!(odc::plan(&[11], 2, 10, Policy::LbMini, Cost::LINEAR), Argument, "11", "10");
    assert_error!(odc::plan(&[1], 0, 10, Policy::LbMini, Cost::LINEAR), Argument, "ranks");
    assert_error!(odc::plan(&[1], -1, 10, Policy::LbMini, Cost::LINEAR), Argument, "ranks");
    assert_error!(Cost::of_model("9b"), Argument, "9b");
    assert_error!(Cost::of_model("9\0b"), Argument, "NUL");
    assert_eq!(Cost::of_model("linear").unwrap(), Cost::LINEAR);
}
