// SPDX-License-Identifier: Apache-2.0
//! One variant for each status, with the library's sentence.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::CStr;
use std::fmt;

use odc_sys as sys;

macro_rules! errors {
    ($($(#[$doc:meta])* $variant:ident = $status:ident,)*) => {
        /// The error of a failed call: a variant for each `odc_status`, each with the library's
        /// sentence, which says what was wrong, where, and what to do.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[$doc])* $variant(String),)*
            /// A status of a newer library, which this crate does not know.
            Other {
                /// The `odc_status`.
                status: i32,
                /// The library's sentence.
                message: String,
            },
        }

        impl Error {
            fn new(status: sys::odc_status, message: String) -> Error {
                match status {
                    $(sys::$status => Error::$variant(message),)*
                    _ => Error::Other { status, message },
                }
            }

            /// The `odc_status`.
            pub fn status(&self) -> i32 {
                match self {
                    $(Error::$variant(_) => sys::$status,)*
                    Error::Other { status, .. } => *status,
                }
            }

            /// The sentence.
            pub fn message(&self) -> &str {
                match self {
                    $(Error::$variant(message) => message,)*
                    Error::Other { message, .. } => message,
                }
            }
        }
    };
}

errors! {
    /// The arguments are wrong; nothing has changed.
    Argument = ODC_ERROR_ARGUMENT,
    /// A call in the wrong phase; nothing has changed.
    Phase = ODC_ERROR_PHASE,
    /// The sentence has the needed and the available memory.
    NoMemory = ODC_ERROR_NO_MEMORY,
    /// This library or machine does not support it; the sentence says why.
    Unsupported = ODC_ERROR_UNSUPPORTED,
    /// The operating system refused; the sentence names the call.
    System = ODC_ERROR_SYSTEM,
    /// `Config::interrupted` ended the wait; the call may be repeated.
    Interrupted = ODC_ERROR_INTERRUPTED,
    /// The ranks did not meet; the sentence says who was missing or why.
    Rendezvous = ODC_ERROR_RENDEZVOUS,
    /// An internal error of the library, with its text.
    Internal = ODC_ERROR_INTERNAL,
    /// A job error: a rank died, or left while it was needed.
    PeerLost = ODC_ERROR_PEER_LOST,
    /// A job error: a rank called `Minibatch::abort`, or panicked.
    Aborted = ODC_ERROR_ABORTED,
    /// A job error: a rank missed the deadline; the sentence has each missing rank's last call.
    Timeout = ODC_ERROR_TIMEOUT,
    /// A job error: ranks disagree about a shard or a reduction; names both.
    Mismatch = ODC_ERROR_MISMATCH,
    /// A job error: a rank's GPU failed, whichever kernel caused it; with CUDA's error text.
    Device = ODC_ERROR_DEVICE,
}

impl Error {
    /// Whether the error is permanent and all ranks get it with the same text. After another error
    /// nothing has changed, but after a publish that ended in none of
    /// [`Argument`](Error::Argument), [`Phase`](Error::Phase) and
    /// [`Unsupported`](Error::Unsupported) slices must not be written before the next sync.
    pub fn is_job_error(&self) -> bool {
        is_job_error(self.status())
    }
}

pub(crate) fn is_job_error(status: sys::odc_status) -> bool {
    status <= sys::ODC_ERROR_PEER_LOST
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Error {}

/// A failed call that took a value and returns it, to repeat the call, or to end in order.
///
/// `?` makes it an [`Error`], or a `Box<dyn std::error::Error>`.
pub struct Failed<T> {
    /// The error.
    pub error: Error,
    /// The value passed to the call.
    pub back: T,
}

impl<T> fmt::Debug for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> From<Failed<T>> for Error {
    fn from(failed: Failed<T>) -> Error {
        failed.error
    }
}

// Not by being an error itself: `back` lives too short for these boxes.
impl<T> From<Failed<T>> for Box<dyn std::error::Error> {
    fn from(failed: Failed<T>) -> Self {
        Box::new(failed.error)
    }
}

impl<T> From<Failed<T>> for Box<dyn std::error::Error + Send + Sync> {
    fn from(failed: Failed<T>) -> Self {
        Box::new(failed.error)
    }
}

thread_local! {
    // clippy 1.63 reports the constant that thread_local! itself makes.
    #[allow(clippy::declare_interior_mutable_const)]
    static PANIC: RefCell<Option<Box<dyn Any + Send>>> = const { RefCell::new(None) };
}

/// Keeps the panic of a callback, which must not cross C, until the call that invoked it has
/// returned.
pub(crate) fn keep_panic(panic: Box<dyn Any + Send>) {
    PANIC.with(|kept| *kept.borrow_mut() = Some(panic));
}

/// Resumes the panic of a callback, if there was one.
pub(crate) fn take_up_panic() {
    let panic = PANIC.with(|kept| kept.borrow_mut().take());
    if let Some(panic) = panic {
        std::panic::resume_unwind(panic);
    }
}

/// The result of a call that this thread has just made. The call's arguments and results must be
/// safe to drop then, as a panic of a callback resumes here.
pub(crate) fn check(status: sys::odc_status) -> Result<(), Error> {
    if status != sys::ODC_OK {
        return Err(error_of(status));
    }
    take_up_panic();
    Ok(())
}

/// Like `check`, for a call that has failed.
pub(crate) fn error_of(status: sys::odc_status) -> Error {
    take_up_panic();
    // SAFETY: never NULL, and valid until this thread's next failed call.
    let message = unsafe { CStr::from_ptr(sys::odc_last_error()) };
    Error::new(status, message.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_variant_and_a_strange_one_keeps_its_number() {
        for status in sys::ODC_ERROR_DEVICE..=sys::ODC_ERROR_ARGUMENT {
            let error = Error::new(status, "words".to_string());
            assert!(!matches!(error, Error::Other { .. }), "{}", status);
            assert_eq!((error.status(), error.message(), error.to_string().as_str()), (status, "words", "words"));
            assert_eq!(error.is_job_error(), status <= sys::ODC_ERROR_PEER_LOST);
        }
        let strange = Error::new(-99, "words".to_string());
        assert_eq!((strange.status(), strange.message()), (-99, "words"));
        assert!(matches!(strange, Error::Other { .. }));
    }
}
