//! Resolution of addresses for the calls that take [`ToSocketAddrs`].

use std::io;
use std::net::SocketAddr;

use ::tokio::net::{ToSocketAddrs, lookup_host};

/// Calls `open` for each address of a name until it succeeds.
pub(super) async fn each<T>(
    addr: impl ToSocketAddrs,
    mut open: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for addr in lookup_host(addr).await? {
        match open(addr) {
            Err(error) => last = Some(error),
            opened => return opened,
        }
    }
    Err(last.unwrap_or_else(no_address))
}

/// Returns the error of a name without addresses.
pub(super) fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "could not resolve to any address")
}
