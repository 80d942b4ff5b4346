// SPDX-License-Identifier: Apache-2.0
//! One variant for each status, with the library's sentence.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::CStr;
use std::fmt;

use odc_sys as sys;

macro_rules! errors {
    ($($(#[$doc:meta])* $variant:ident = $status:ident,)*) => {
        /// What a failed call says: a variant for each `odc_status`, each with the library's sentence, which says what
        /// was wrong, where, and what to do.
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
    /// The right call at the wrong moment; nothing has changed.
    Phase = ODC_ERROR_PHASE,
    /// Says how much memory was needed and how much there is.
    NoMemory = ODC_ERROR_NO_MEMORY,
    /// This library or machine cannot do it; says why.
    Unsupported = ODC_ERROR_UNSUPPORTED,
    /// The operating system refused; says which call.
    System = ODC_ERROR_SYSTEM,
    /// `Config::interrupted` ended the wait; the same call may be made again.
    Interrupted = ODC_ERROR_INTERRUPTED,
    /// The ranks did not meet; says who was missing or why.
    Rendezvous = ODC_ERROR_RENDEZVOUS,
    /// A fault in the library, with its text.
    Internal = ODC_ERROR_INTERNAL,
    /// A job error: a rank died, or left while it was needed.
    PeerLost = ODC_ERROR_PEER_LOST,
    /// A job error: a rank called `Minibatch::abort`, or panicked.
    Aborted = ODC_ERROR_ABORTED,
    /// A job error: a rank missed the deadline; says what each missing rank last did.
    Timeout = ODC_ERROR_TIMEOUT,
    /// A job error: ranks disagree about a shard or a reduction; names both.
    Mismatch = ODC_ERROR_MISMATCH,
    /// A job error: a rank's GPU failed, whoever's kernel did it; with CUDA's words.
    Device = ODC_ERROR_DEVICE,
}

impl Error {
    /// Whether it sticks to the context and reaches all ranks in the same words. After another error nothing has changed,
    /// but after a publish that ended in none of [`Argument`](Error::Argument), [`Phase`](Error::Phase) and
    /// [`Unsupported`](Error::Unsupported) slices are not to be written before the next sync.
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

/// A failed call that was handed something by value, and gives it back: to make the call again, or to end in order.
///
/// `?` makes it an [`Error`], or a `Box<dyn std::error::Error>`.
pub struct Failed<T> {
    /// Why.
    pub error: Error,
    /// What the call was handed.
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

/// Keeps the panic of a callback, which must not cross C, until the call that asked it has returned.
pub(crate) fn keep_panic(panic: Box<dyn Any + Send>) {
    PANIC.with(|kept| *kept.borrow_mut() = Some(panic));
}

/// Goes on with the panic of a callback, if there was one.
pub(crate) fn take_up_panic() {
    let panic = PANIC.with(|kept| kept.borrow_mut().take());
    if let Some(panic) = panic {
        std::panic::resume_unwind(panic);
    }
}

/// What a call of this thread has just ended with. What the call was handed or made must be safe to drop then, as a panic
/// of a callback goes on here.
pub(crate) fn check(status: sys::odc_status) -> Result<(), Error> {
    if status != sys::ODC_OK {
        return Err(error_of(status));
    }
    take_up_panic();
    Ok(())
}

/// As `check`, of a call that has failed.
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
