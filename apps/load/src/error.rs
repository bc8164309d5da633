//! Why a run did not begin.

use std::io;
use std::net::IpAddr;

use crate::plan::LoadPlanError;

/// Why [`run`](crate::run) or [`Target::resolve`](crate::Target::resolve) gave no figures.
///
/// Failures of single connections and requests are not errors: a [`Report`](crate::Report)
/// counts them by kind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plan contradicts itself.
    #[error(transparent)]
    Plan(#[from] LoadPlanError),
    /// The host's name has no address, or the text is not HOST:PORT.
    #[error("cannot resolve \"{name}\": {reason}; expected HOST:PORT, as 127.0.0.1:7 or [::1]:7")]
    Resolve {
        /// Host and port as they were given.
        name: String,
        /// Words of the resolver.
        reason: String,
    },
    /// The hard limit on descriptors is below what the users need.
    #[error(
        "{users} users need {needed} file descriptors, but this process may have {limit}; \
         raise the hard limit (as root: `ulimit -Hn {needed}`, for good: a line \
         `* hard nofile {needed}` in /etc/security/limits.conf), or ask for fewer users"
    )]
    Descriptors {
        /// Users of the plan.
        users: usize,
        /// Descriptors that these users and the threads need.
        needed: u64,
        /// The hard limit, RLIMIT_NOFILE.
        limit: u64,
    },
    /// No socket can be bound to an address that the plan names as local.
    #[error("cannot send from {address}: {source}; expected an address of this machine")]
    LocalAddress {
        /// The address.
        address: IpAddr,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel refused a resource that every run needs.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that failed, as an infinitive.
        action: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: the kernel's refusal of an action.
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}
