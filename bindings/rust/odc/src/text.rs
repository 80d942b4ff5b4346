// SPDX-License-Identifier: Apache-2.0
//! Strings to and from C.

use std::ffi::{CStr, CString};
use std::os::raw::c_char;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::Error;

pub(crate) fn c_string(text: &str, what: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|error| {
        Error::Argument(format!(
            "{} has a NUL character at byte {}, which ends a string of C",
            what,
            error.nul_position()
        ))
    })
}

pub(crate) fn c_path(path: &Path, what: &str) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes()).map_err(|error| {
        Error::Argument(format!(
            "{} has a NUL character at byte {}, which ends a string of C",
            what,
            error.nul_position()
        ))
    })
}

/// NULL is "".
///
/// # Safety
/// `text` is NULL or a string of C.
pub(crate) unsafe fn string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
