// SPDX-License-Identifier: Apache-2.0
//! Structs of a size other than the library's: those of an older binding are shorter, those of a newer one longer.

use std::ffi::CStr;
use std::mem::size_of;

use odc_sys::*;

fn last_error() -> String {
    unsafe { CStr::from_ptr(odc_last_error()) }.to_str().unwrap().to_string()
}

/// A context of one rank.
fn join(config: *const odc_config) -> Result<*mut odc_context, String> {
    let mut context = std::ptr::null_mut();
    match unsafe { odc_init(config, &mut context) } {
        ODC_OK => Ok(context),
        status => Err(format!("{}: {}", status, last_error())),
    }
}

fn alone() -> odc_config {
    odc_config { size: 1, ..Default::default() }
}

/// The size of `odc_stats` up to `pinned_bytes`.
const FIRST: usize = 88;

#[test]
fn a_shorter_struct_of_an_older_binding_is_filled_up_to_its_size() {
    let context = join(&alone()).unwrap();
    let mut stats = odc_stats { struct_size: FIRST as u64, gather_calls: 7, pinned_bytes: 7, ..Default::default() };
    unsafe {
        assert_eq!(odc_get_stats(context, &mut stats), ODC_OK);
        odc_destroy(context);
    }
    assert_eq!((stats.struct_size, stats.gather_calls, stats.pinned_bytes), (FIRST as u64, 0, 7));
}

#[test]
fn a_struct_that_is_cut_off_or_has_no_size_is_refused_with_both_sizes() {
    for size in [0, 7, 16, size_of::<odc_config>() as u64 - 1, 1 << 40] {
        let error = join(&odc_config { struct_size: size, ..alone() }).unwrap_err();
        assert!(error.starts_with(&ODC_ERROR_ARGUMENT.to_string()), "{}", error);
        for words in ["odc_config", &size.to_string(), &size_of::<odc_config>().to_string()] {
            assert!(error.contains(words), "{:?} is not in: {}", words, error);
        }
    }
    let context = join(&alone()).unwrap();
    let mut stats = odc_stats { struct_size: FIRST as u64 - 1, ..Default::default() };
    unsafe {
        assert_eq!(odc_get_stats(context, &mut stats), ODC_ERROR_ARGUMENT);
        odc_destroy(context);
    }
    let wanted = format!(
        "odc_stats.struct_size is {}, which is not a multiple of 8 between the first libodc's {}",
        FIRST - 1,
        FIRST
    );
    assert!(last_error().starts_with(&wanted), "{}", last_error());
}

#[repr(C)]
struct Longer<T> {
    known: T,
    more: u64,
}

#[test]
fn what_a_longer_struct_has_beyond_the_librarys_must_be_zero() {
    let mut config = Longer { known: alone(), more: 0 };
    config.known.struct_size = size_of::<Longer<odc_config>>() as u64;
    let context = join(std::ptr::addr_of!(config).cast()).unwrap(); // not of `known`, which is shorter
    let mut stats = Longer { known: odc_stats::default(), more: 7 };
    stats.known.struct_size = size_of::<Longer<odc_stats>>() as u64;
    unsafe {
        assert_eq!(odc_get_stats(context, std::ptr::addr_of_mut!(stats).cast()), ODC_OK);
        odc_destroy(context);
    }
    assert_eq!(stats.more, 0);
    config.more = 1;
    let mut context = std::ptr::null_mut();
    assert_eq!(unsafe { odc_init(std::ptr::addr_of!(config).cast(), &mut context) }, ODC_ERROR_UNSUPPORTED);
    let error = last_error();
    for words in ["odc_config", "newer libodc", &size_of::<odc_config>().to_string()] {
        assert!(error.contains(words), "{:?} is not in: {}", words, error);
    }
}
