// SPDX-License-Identifier: Apache-2.0
//! The libodc that was loaded, and whether it is the one that this crate was written for.

use std::ffi::{CStr, CString};
use std::fmt;
use std::os::raw::{c_char, c_int, c_void};
use std::path::Path;

use odc_sys as sys;

use crate::error::{check, Error};
use crate::text::{c_path, string};

/// A version of libodc.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Another one is another binary interface.
    pub major: u32,
    /// A later one adds functions and fields.
    pub minor: u32,
    /// A later one changes neither.
    pub patch: u32,
}

impl Version {
    /// The version of the `odc.h` for which this crate was written.
    pub const NEEDED: Version =
        Version { major: sys::ODC_VERSION_MAJOR, minor: sys::ODC_VERSION_MINOR, patch: sys::ODC_VERSION_PATCH };

    /// The version of the loaded library.
    pub fn found() -> Version {
        // SAFETY: takes nothing.
        let number = unsafe { sys::odc_version() };
        Version { major: number >> 16, minor: number >> 8 & 255, patch: number & 255 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Checks that the loaded library has this crate's binary interface: the same major version, and no
/// earlier minor one. The error says which one was found where, and which is needed. All calls of
/// the library check this first.
///
/// A missing library, or a missing function, is reported by the dynamic linker before `main`.
pub fn check_library() -> Result<(), Error> {
    compare(Version::found(), Version::NEEDED)
}

fn compare(found: Version, needed: Version) -> Result<(), Error> {
    if found.major == needed.major && found.minor >= needed.minor {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "libodc {} was loaded from {}, but this program was written for libodc {} and needs {}.{} or a later {}.x; \
         install that, or put its folder first in LD_LIBRARY_PATH",
        found,
        library_path(),
        needed,
        needed.major,
        needed.minor,
        needed.major
    )))
}

#[repr(C)]
struct DlInfo {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

extern "C" {
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

/// The file that the loaded libodc came from; the program itself where it is linked statically.
pub fn library_path() -> String {
    let mut info = DlInfo {
        file: std::ptr::null(),
        base: std::ptr::null_mut(),
        symbol: std::ptr::null(),
        address: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked for; the string lives as long as the library is loaded.
    unsafe {
        if dladdr(sys::odc_version as *const c_void, &mut info) == 0 || info.file.is_null() {
            return "a place that the dynamic linker does not know".to_string();
        }
        CStr::from_ptr(info.file).to_string_lossy().into_owned()
    }
}

/// The library's version, build type, vector instructions and the machine, as text.
pub fn build() -> Result<String, Error> {
    check_library()?;
    // SAFETY: a static string.
    Ok(unsafe { string(sys::odc_build()) })
}

/// How bytes and sums reach a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transport {
    /// "cuda", "shm", "fabric".
    pub name: String,
    /// `None`: ready; else the reason.
    pub why_not: Option<String>,
}

/// The transports, most preferred first. Querying libfabric takes 0.3 s.
pub fn transports() -> Result<Vec<Transport>, Error> {
    check_library()?;
    rows(|index| {
        let mut row = sys::odc_transport::default();
        // SAFETY: `row` is sized; its strings are copied before this thread's next call.
        unsafe {
            check(sys::odc_get_transport(index, &mut row))?;
            let why_not = if row.why_not.is_null() { None } else { Some(string(row.why_not)) };
            Ok(Transport { name: string(row.name), why_not })
        }
    })
}

/// A setting of the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// The environment variable's name.
    pub name: String,
    /// Its default.
    pub fallback: String,
    /// Its description.
    pub help: String,
}

/// The settings that the library reads from the environment.
pub fn settings() -> Result<Vec<Setting>, Error> {
    check_library()?;
    rows(|index| {
        let mut row = sys::odc_setting::default();
        // SAFETY: `row` is sized; its strings are static.
        unsafe {
            check(sys::odc_get_setting(index, &mut row))?;
            Ok(Setting { name: string(row.name), fallback: string(row.fallback), help: string(row.help) })
        }
    })
}

/// The rows of a table end with an argument error.
fn rows<Row>(get: impl Fn(usize) -> Result<Row, Error>) -> Result<Vec<Row>, Error> {
    let mut found = Vec::new();
    loop {
        match get(found.len()) {
            Ok(row) => found.push(row),
            Err(Error::Argument(_)) => return Ok(found),
            Err(error) => return Err(error),
        }
    }
}

/// A machine: packages, NUMA nodes, GPUs and NICs, and its routes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Topology {
    /// As `odc topo --json` prints it.
    pub json: String,
    /// A record of this machine, which hwloc and [`topology`] read.
    pub xml: String,
}

/// This machine, or the one that hwloc recorded in `file`.
pub fn topology(file: Option<&Path>) -> Result<Topology, Error> {
    check_library()?;
    let file: Option<CString> = file.map(|file| c_path(file, "file")).transpose()?;
    let (mut json, mut xml) = (std::ptr::null(), std::ptr::null());
    let name = file.as_ref().map_or(std::ptr::null(), |file| file.as_ptr());
    // SAFETY: both strings are valid until this thread's next call, and copied before it.
    unsafe {
        check(sys::odc_get_topology(name, &mut json, &mut xml))?;
        Ok(Topology { json: string(json), xml: string(xml) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn version(major: u32, minor: u32, patch: u32) -> Version {
        Version { major, minor, patch }
    }

    #[test]
    fn the_same_major_and_no_earlier_minor_version_is_needed() {
        let needed = version(0, 3, 1);
        for good in [needed, version(0, 3, 0), version(0, 4, 0), version(0, 200, 9)] {
            assert_eq!(compare(good, needed), Ok(()), "{}", good);
        }
        for bad in [version(0, 2, 9), version(1, 3, 1), version(7, 0, 0)] {
            let error = compare(bad, needed).unwrap_err();
            let here = format!("libodc {} was loaded from {}", bad, library_path());
            assert!(error.message().starts_with(&here), "{}", error);
            assert!(error.message().contains("needs 0.3 or a later 0.x"), "{}", error);
        }
    }
}
