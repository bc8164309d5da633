//! Errors that prevent the execution of a run.

use std::io;
use std::net::IpAddr;

use crate::plan::LoadPlanError;

/// Reason why [`run`](crate::run) or [`Target::resolve`](crate::Target::resolve) failed.
///
/// Failures of single connections and requests are not errors: a [`Report`](crate::Report) counts
/// them by kind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plan is inconsistent.
    #[error(transparent)]
    Plan(#[from] LoadPlanError),
    /// The name of the host has no address, or the text does not have the form HOST:PORT.
    #[error("cannot resolve \"{name}\": {reason}; expected HOST:PORT, as 127.0.0.1:7 or [::1]:7")]
    Resolve {
        /// Host and port as given by the caller.
        name: String,
        /// Error message of the resolver.
        reason: String,
    },
    /// The number of users requires more descriptors than the hard limit allows.
    #[error(
        "{users} users need {needed} file descriptors, but this process may have {limit}; \
         raise the hard limit (as root: `ulimit -Hn {needed}`, for good: a line \
         `* hard nofile {needed}` in /etc/security/limits.conf), or ask for fewer users"
    )]
    Descriptors {
        /// Number of users in the plan.
        users: usize,
        /// Number of descriptors that the users and threads need.
        needed: u64,
        /// Hard limit on the number of descriptors (RLIMIT_NOFILE).
        limit: u64,
    },
    /// No socket can be bound to one of the plan's local addresses.
    #[error("cannot send from {address}: {source}; expected an address of this machine")]
    LocalAddress {
        /// Local address to which no socket can be bound.
        address: IpAddr,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// The kernel refused a resource that every run needs.
    #[error("cannot {action}: {source}")]
    System {
        /// Action that failed, as an infinitive.
        action: &'static str,
        /// Error that the kernel returned.
        source: io::Error,
    },
}

impl Error {
    /// Returns a function that converts the I/O error of an action, for use with `map_err`.
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}
