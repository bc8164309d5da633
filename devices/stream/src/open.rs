//! Opens a link: connects to a peer, or listens for one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Reason why a link cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The path exists, but is not a socket.
    #[error("{0} exists and is not a socket; choose another path")]
    NotASocket(String),
    /// The process that listens at the path belongs to another user.
    #[error("the process that listens at {0} belongs to another user")]
    ForeignPeer(String),
    /// Another process listens at the path.
    #[error("another process listens at {0}; choose another path")]
    InUse(String),
    /// The process at the path already has a peer, and its queue of waiting peers is full.
    #[error("{0} has a peer, and others wait for it to leave")]
    Busy(String),
    /// A system call failed.
    #[error("{path}: {source}")]
    System {
        /// Path of the socket.
        path: String,
        /// Error returned by the kernel.
        source: io::Error,
    },
}

/// Side of a link that this process takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkRole {
    /// Connect to the peer that listens at the path. If there is none, listen.
    #[default]
    Either,
    /// Connect, now or as soon as a peer listens.
    Connect,
    /// Listen.
    Listen,
}

/// The process that listens at the path: the peer, or this process.
#[derive(Debug)]
pub(crate) enum LinkSide {
    /// The peer listens at this path, and this process connects.
    Connects(PathBuf),
    /// We listen, and the peer connects to this socket.
    Listens(PeerListener),
}

/// A listening Unix socket for peers of the same user, or of root. Its file is removed when this
/// value is dropped.
#[derive(Debug)]
pub struct PeerListener {
    pub(crate) socket: UnixListener,
    path: PathBuf,
    /// Device and inode number of the socket's file, because another process may have replaced the
    /// file.
    identity: Option<(u64, u64)>,
}

/// Connects to the peer that listens at `path`, or listens at `path`, as `role` says.
pub(crate) fn open(
    path: &Path,
    kind: SocketType,
    role: LinkRole,
) -> Result<(LinkSide, Option<UnixStream>), OpenError> {
    let failed = |source| OpenError::System { path: path.display().to_string(), source };
    // Make the path absolute, so that a later change of the working directory has no effect.
    let path = &std::path::absolute(path).map_err(failed)?;
    let peer = find(path, kind, role)?;
    if role != LinkRole::Listen && peer.is_some() || role == LinkRole::Connect {
        return Ok((LinkSide::Connects(path.clone()), peer));
    }
    if peer.is_some() {
        return Err(OpenError::InUse(path.display().to_string()));
    }
    let listener = PeerListener::new(path, kind).map_err(failed)?;
    Ok((LinkSide::Listens(listener), None))
}

/// Connects to the peer that listens at `path`. Returns `None` if there is none. Removes a socket
/// that was left by a process that was killed, unless this process only connects. A server that has
/// bound its socket, and does not listen yet, needs the file.
fn find(path: &Path, kind: SocketType, role: LinkRole) -> Result<Option<UnixStream>, OpenError> {
    let shown = || path.display().to_string();
    match connect(path, kind) {
        Ok(peer) => Ok(Some(peer)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            io::ErrorKind::PermissionDenied if path.exists() => {
                Err(OpenError::ForeignPeer(shown()))
            }
            io::ErrorKind::ConnectionRefused => {
                check_socket(path)?;
                if role != LinkRole::Connect {
                    let failed = |source| OpenError::System { path: shown(), source };
                    std::fs::remove_file(path).map_err(failed)?;
                }
                Ok(None)
            }
            io::ErrorKind::WouldBlock => Err(OpenError::Busy(shown())),
            _ => Err(OpenError::System { path: shown(), source: error }),
        },
    }
}

/// Connects to the peer that listens at `path`, if it belongs to this user or to root. Returns the
/// error `WouldBlock` instead of waiting if the socket's queue is full.
pub(crate) fn connect(path: &Path, kind: SocketType) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    check(socket.into())
}

/// Rejects a peer that belongs to another user, except root.
fn check(peer: UnixStream) -> io::Result<UnixStream> {
    let user = rustix::net::sockopt::socket_peercred(&peer)?.uid;
    if !user.is_root() && user != rustix::process::geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    peer.set_nonblocking(true)?;
    Ok(peer)
}

/// Checks that the file at `path` is a socket.
fn check_socket(path: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::System { path: path.display().to_string(), source };
    let found = std::fs::symlink_metadata(path).map_err(failed)?;
    match found.file_type().is_socket() {
        true => Ok(()),
        false => Err(OpenError::NotASocket(path.display().to_string())),
    }
}

impl PeerListener {
    /// Listens at `path` for stream sockets. Removes a socket that was left by a process that was
    /// killed.
    ///
    /// # Errors
    /// Returns [`OpenError`] if the path is in use, or a system call fails.
    pub fn bind(path: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::System { path: path.display().to_string(), source };
        let path = &std::path::absolute(path).map_err(failed)?;
        match find(path, SocketType::STREAM, LinkRole::Listen)? {
            Some(_) => Err(OpenError::InUse(path.display().to_string())),
            None => Self::new(path, SocketType::STREAM).map_err(failed),
        }
    }

    fn new(path: &Path, kind: SocketType) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        // The socket's file gets these permissions by bind(2), so other users never have access.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        let identity = std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()));
        let listener = Self { socket: socket.into(), path: path.to_owned(), identity };
        rustix::net::listen(&listener.socket, 1)?;
        Ok(listener)
    }

    /// Accepts the next peer that waits. The connection is non-blocking.
    ///
    /// # Errors
    /// Returns `WouldBlock` if no peer waits, `PermissionDenied` if the peer is another user, and
    /// the errors of accept(2).
    pub fn accept(&self) -> io::Result<UnixStream> {
        check(self.socket.accept()?.0)
    }
}

impl AsFd for PeerListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for PeerListener {
    fn drop(&mut self) {
        let file = std::fs::symlink_metadata(&self.path).ok();
        if self.identity.is_some() && file.map(|file| (file.dev(), file.ino())) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
