//! Creates the sockets of users, and raises the limit on descriptors.
//!
//! Uses socket calls of libc (through nix, mio and std). rustix would call the kernel directly and
//! bypass the library of `towpath run`, so that the sockets would not be on the stack.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::net::{TcpStream, UdpSocket};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, sockopt,
};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::Error;
use crate::failure::Failure;

/// Starts to connect a TCP socket. The socket becomes writable when the connect has completed or
/// failed.
pub fn tcp(to: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = socket(to, from, SockType::Stream)?;
    // Disable Nagle's algorithm, because it would delay a small request until the previous one is
    // acknowledged.
    setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(nix::Error::EINPROGRESS) => Ok(TcpStream::from_std(socket.into())),
        Err(error) => Err(error.into()),
    }
}

/// Creates a connected UDP socket, which exchanges datagrams with only one server.
pub fn udp(to: SocketAddr, from: Option<IpAddr>) -> io::Result<UdpSocket> {
    let socket = socket(to, from, SockType::Datagram)?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(UdpSocket::from_std(socket.into()))
}

fn socket(to: SocketAddr, from: Option<IpAddr>, kind: SockType) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = nix::sys::socket::socket(family, kind, flags, None)?;
    if let Some(from) = from {
        // Let connect(2) choose the port instead of bind(2), so that sockets to different servers
        // can share a port. Ignore errors: a stack without this option chooses the port in bind(2),
        // so that fewer ports are available.
        let _ = setsockopt(&socket, sockopt::IpBindAddressNoPort, &true);
        bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, 0)))?;
    }
    Ok(socket)
}

/// Returns the first address that accepts a connection. If none does, returns the first address.
///
/// "localhost" often resolves to both ::1 and 127.0.0.1, while most servers listen on only one of
/// them.
pub fn accepting(addresses: &[SocketAddr], limit: Duration) -> SocketAddr {
    let accepts = |to: &&SocketAddr| std::net::TcpStream::connect_timeout(to, limit).is_ok();
    match addresses {
        [only] => *only,
        several => *several.iter().find(accepts).unwrap_or(&several[0]),
    }
}

/// Checks that sockets can be bound to `address`, which is the case if this machine has the
/// address.
pub fn check_local(address: IpAddr) -> Result<(), Error> {
    match std::net::UdpSocket::bind((address, 0)) {
        Ok(_) => Ok(()),
        Err(source) => Err(Error::LocalAddress { address, source }),
    }
}

/// Raises the soft limit on descriptors to the hard limit.
///
/// # Errors
/// Returns an error if the hard limit is too low for `users`.
pub fn allow_descriptors(users: usize, threads: usize) -> Result<(), Error> {
    let limit = getrlimit(Resource::Nofile);
    if let Some(current) = limit.current
        && limit.maximum.is_none_or(|maximum| current < maximum)
    {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised)
            .map_err(|error| Error::system("raise the limit on file descriptors")(error.into()))?;
    }
    let open = std::fs::read_dir("/proc/self/fd").map_or(OPEN_GUESS, |it| it.count());
    let needed = (users + threads * PER_THREAD + open) as u64;
    match limit.maximum {
        Some(limit) if limit < needed => Err(Error::Descriptors { users, needed, limit }),
        _ => Ok(()),
    }
}

/// Number of descriptors per thread: epoll, timer and waker.
const PER_THREAD: usize = 3;
/// Assumed number of open descriptors of this process, if `/proc` cannot be read.
const OPEN_GUESS: usize = 16;

/// Returns the kind of failure for an error of a socket.
pub fn kind(error: &io::Error) -> Failure {
    let Some(errno) = Errno::from_io_error(error) else { return Failure::Other };
    match errno {
        Errno::CONNREFUSED => Failure::Refused,
        Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN | Errno::NETDOWN => {
            Failure::Unreachable
        }
        Errno::CONNRESET | Errno::CONNABORTED | Errno::PIPE => Failure::Reset,
        Errno::ADDRNOTAVAIL => Failure::NoLocalPorts,
        Errno::MFILE | Errno::NFILE => Failure::NoDescriptors,
        Errno::TIMEDOUT => Failure::ConnectTimeout,
        _ => Failure::Other,
    }
}

/// Returns whether the error means that the queue of a device was full. The datagram is then lost,
/// as it may be in the network.
pub fn is_no_room(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOBUFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_kernel_have_their_kinds() {
        for (errno, expected) in [
            (Errno::CONNREFUSED, Failure::Refused),
            (Errno::NETUNREACH, Failure::Unreachable),
            (Errno::HOSTUNREACH, Failure::Unreachable),
            (Errno::CONNRESET, Failure::Reset),
            (Errno::PIPE, Failure::Reset),
            (Errno::ADDRNOTAVAIL, Failure::NoLocalPorts),
            (Errno::MFILE, Failure::NoDescriptors),
            (Errno::NFILE, Failure::NoDescriptors),
            (Errno::TIMEDOUT, Failure::ConnectTimeout),
            (Errno::ACCESS, Failure::Other),
        ] {
            assert_eq!(kind(&errno.into()), expected, "{errno}");
        }
        assert_eq!(kind(&io::ErrorKind::NotConnected.into()), Failure::Other);
    }

    #[test]
    fn of_several_addresses_the_first_that_accepts_is_taken() {
        let limit = Duration::from_secs(30);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        // While `open` has the port at one address, no other program can listen on this port at all
        // addresses.
        let closed = SocketAddr::new("127.97.0.1".parse().unwrap(), open.port());
        let other = SocketAddr::new("127.97.0.2".parse().unwrap(), open.port());
        assert_eq!(accepting(&[closed, open], limit), open);
        assert_eq!(accepting(&[closed], limit), closed);
        assert_eq!(accepting(&[closed, other], limit), closed);
    }
}
