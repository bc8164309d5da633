//! Network namespaces.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread::Builder;

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Network namespace in which a socket is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetNamespace {
    /// Network namespace of this process.
    Own,
    /// Network namespace with this name, as created by ip-netns(8), or with this path, such as
    /// `/proc/PID/ns/net`.
    Named(String),
}

impl NetNamespace {
    /// Runs `work` in the namespace, on a thread of its own. Sockets and devices that `work` opens
    /// stay in the namespace.
    ///
    /// # Errors
    /// Fails if the namespace does not exist, or without CAP_SYS_ADMIN.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let Self::Named(name) = self else { return Ok(work()) };
        let namespace =
            rustix::fs::open(path(name), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let enter_and_work = || -> io::Result<T> {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        };
        std::thread::scope(|scope| {
            let thread = Builder::new().name("towpath-netns".into());
            let thread = thread.spawn_scoped(scope, enter_and_work)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Returns the file of a namespace.
fn path(name: &str) -> PathBuf {
    if name.contains('/') { name.into() } else { PathBuf::from("/run/netns").join(name) }
}

impl fmt::Display for NetNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("of this process"),
            Self::Named(name) => f.write_str(name),
        }
    }
}
