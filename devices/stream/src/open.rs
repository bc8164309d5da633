//! Opens a link: connects to a peer, or listens for one.

use std::io;
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

/// The process that listens at the path: the peer, or this process.
#[derive(Debug)]
pub(crate) enum LinkSide {
    /// The peer listens at this path, and this process connects.
    Connects(PathBuf),
    /// We listen, and the peer connects to this socket.
    Listens(PeerListener),
}

/// A listening Unix socket. Its file is deleted when this value is dropped.
#[derive(Debug)]
pub(crate) struct PeerListener {
    pub(crate) socket: UnixListener,
    path: PathBuf,
    /// Device and inode number of the socket's file, because another process may have replaced the
    /// file.
    identity: Option<(u64, u64)>,
}

/// Connects to the peer that listens at `path`. If there is none, listens at `path`.
pub(crate) fn open(path: &Path) -> Result<(LinkSide, Option<UnixStream>), OpenError> {
    let failed = |source| OpenError::System { path: path.display().to_string(), source };
    // Make the path absolute, so that a later change of the working directory has no effect.
    let path = &std::path::absolute(path).map_err(failed)?;
    match connect(path) {
        Ok(peer) => return Ok((LinkSide::Connects(path.clone()), Some(peer))),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => {}
            io::ErrorKind::PermissionDenied if path.exists() => {
                return Err(OpenError::ForeignPeer(path.display().to_string()));
            }
            io::ErrorKind::ConnectionRefused => remove_stale(path)?,
            io::ErrorKind::WouldBlock => {
                return Err(OpenError::Busy(path.display().to_string()));
            }
            _ => return Err(failed(error)),
        },
    }
    let listener = PeerListener::new(path).map_err(failed)?;
    Ok((LinkSide::Listens(listener), None))
}

/// Connects to the peer that listens at `path`, if it belongs to this user or to root. Returns the
/// error `WouldBlock` instead of waiting if the socket's queue is full.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
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

/// Removes a socket file that was left by a process that was killed.
fn remove_stale(path: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::System { path: path.display().to_string(), source };
    let found = std::fs::symlink_metadata(path).map_err(failed)?;
    if !found.file_type().is_socket() {
        return Err(OpenError::NotASocket(path.display().to_string()));
    }
    std::fs::remove_file(path).map_err(failed)
}

impl PeerListener {
    fn new(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The socket's file gets these permissions by bind(2), so other users never have access.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        let identity = std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()));
        let listener = Self { socket: socket.into(), path: path.to_owned(), identity };
        rustix::net::listen(&listener.socket, 1)?;
        Ok(listener)
    }

    /// Accepts the next peer that waits. Returns the error `WouldBlock` if no peer waits.
    pub(crate) fn accept(&self) -> io::Result<UnixStream> {
        check(self.socket.accept()?.0)
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
