//! Resolves host names, and tries the resulting addresses one after another.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use crate::shared::SharedStack;

/// Calls `open` for each address that `addr` resolves to, until a call succeeds.
pub(super) fn each<T>(
    addr: impl ToSocketAddrs,
    mut open: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for addr in addr.to_socket_addrs()? {
        match open(addr) {
            Err(error) => last = Some(error),
            opened => return opened,
        }
    }
    Err(last.unwrap_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "could not resolve to any addresses")
    }))
}

/// Calls `open` with the current stack of this thread and each address that `addr` resolves to,
/// until a call succeeds.
pub(super) fn each_here<T>(
    addr: impl ToSocketAddrs,
    mut open: impl FnMut(&Arc<SharedStack>, SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let shared = crate::current::current()?;
    each(addr, |addr| open(&shared, addr))
}
