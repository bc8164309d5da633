//! Connects to a peer, or waits for one.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Reason why a link cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The path is a file, or something else that is not a socket.
    #[error("{0} exists and is not a socket; choose another path")]
    NotASocket(String),
    /// The process that listens at the path belongs to another user.
    #[error("the process that listens at {0} belongs to another user")]
    ForeignPeer(String),
    /// The process that listens at the path has a peer, and its queue of further peers is full.
    #[error("{0} has a peer, and others wait for it to leave")]
    Busy(String),
    /// A system call failed.
    #[error("{path}: {source}")]
    System {
        /// The path.
        path: String,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// How the peer is reached.
#[derive(Debug)]
pub(crate) enum LinkSide {
    /// The peer listens at this path.
    Connects(PathBuf),
    /// The peer connects to this socket.
    Listens(PeerListener),
}

/// A listening socket, whose file is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct PeerListener {
    pub(crate) socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, which another process may have replaced since.
    identity: Option<(u64, u64)>,
}

/// Connects to the peer that listens at `path`; otherwise listens there.
pub(crate) fn open(path: &Path) -> Result<(LinkSide, Option<UnixStream>), OpenError> {
    let failed = |source| OpenError::System { path: path.display().to_string(), source };
    // Absolute, so that a later change of the working directory has no effect.
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

/// Connects to the peer that listens at `path`, if it belongs to this user or to root. Never waits:
/// returns the error `WouldBlock` if the queue of the listening socket is full.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    check(socket.into())
}

/// Refuses a peer of another user.
fn check(peer: UnixStream) -> io::Result<UnixStream> {
    let user = rustix::net::sockopt::socket_peercred(&peer)?.uid;
    if !user.is_root() && user != rustix::process::geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    peer.set_nonblocking(true)?;
    Ok(peer)
}

/// Removes a socket that a killed process has left.
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
        // The file gets this mode when the socket is bound, so other users never have access.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        let identity = std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()));
        let listener = Self { socket: socket.into(), path: path.to_owned(), identity };
        rustix::net::listen(&listener.socket, 1)?;
        Ok(listener)
    }

    /// Returns the next peer that waits; the error `WouldBlock` if there is none.
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
