//! Resolves addresses and names, and tries each address in turn.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use crate::shared::SharedStack;

/// Calls `open` for each address of a name until it succeeds.
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

/// Calls [`each`] with the stack that this thread has entered, or the default one.
pub(super) fn each_here<T>(
    addr: impl ToSocketAddrs,
    mut open: impl FnMut(&Arc<SharedStack>, SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let shared = crate::current::current()?;
    each(addr, |addr| open(&shared, addr))
}
