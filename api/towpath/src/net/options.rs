//! Addresses and socket options that TCP and UDP sockets have in common.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use rustix::io::Errno;
use towpath_client::{Error, handle};
use towpath_shm::control::call;
use towpath_shm::layout::{Kind, RawAddr, flags, option_bit, setting};

use super::address::{is_v6_host, shown};
use super::handle::{INET6, OwnedSocket, fail};
use crate::error::io_error;

/// TTL of sent packets if the option IP_TTL is not set.
const TTL_DEFAULT: u32 = 64;
/// Maximum value in bytes that a program may set for SO_RCVBUF and SO_SNDBUF (net.core.rmem_max,
/// wmem_max). The actual size is twice the value, as on Linux.
const BUFFER_MAX: u32 = 4 << 20;
/// Minimum size of the send buffer in bytes, as in Linux (SOCK_MIN_SNDBUF).
const SNDBUF_MIN: u32 = 4608;
/// Minimum size of the receive buffer in bytes, as in Linux (SOCK_MIN_RCVBUF).
const RCVBUF_MIN: u32 = 2304;
/// Default size of a TCP socket's send buffer in bytes, as in Linux (net.ipv4.tcp_wmem).
const TCP_SNDBUF: u32 = 16384;
/// Default size of a TCP socket's receive buffer in bytes, as in Linux (net.ipv4.tcp_rmem).
const TCP_RCVBUF: u32 = 131_072;
/// Default size of a UDP socket's buffers in bytes, as in Linux (net.core.rmem_default).
const DATAGRAM_BUFFER: u32 = 212_992;

/// Numbers of SOL_SOCKET and SO_RCVBUF in Linux.
const SOL_SOCKET: u32 = 1;
const SO_RCVBUF: u32 = 8;

impl OwnedSocket {
    /// Binds the socket (bind(2)).
    pub(crate) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        self.call(call::BIND, |request| request.addr = RawAddr::new(addr))?;
        if is_v6_host(&addr) {
            // As on Linux, a socket bound to the address of an IPv6 host supports only IPv6.
            self.set_bit(option_bit::V6ONLY, true)?;
        }
        Ok(())
    }

    /// Starts to connect to `addr`, without waiting for the peer.
    pub(crate) fn start_connect(&self, addr: SocketAddr) -> io::Result<()> {
        // As on Linux, an IPv6 socket connects to an IPv4 peer by an IPv4-mapped address.
        let remote = RawAddr::new(shown(RawAddr::new(addr), self.family));
        self.call(call::CONNECT, |request| request.addr = remote).map(drop)
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(shown(self.slot()?.local.load(), self.family))
    }

    /// Returns the peer's address (getpeername(2)), or ENOTCONN without a peer.
    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        let slot = self.slot()?;
        let is_connected = slot.flags.load(Acquire) & flags::CONNECTED != 0;
        let remote = shown(slot.remote.load(), self.family);
        if !is_connected || self.is_stream()? && !self.is_open_stream()? || remote.port() == 0 {
            return fail(Errno::NOTCONN);
        }
        Ok(remote)
    }

    pub(crate) fn is_stream(&self) -> io::Result<bool> {
        Ok(handle::kind(self.slot()?) == Kind::Stream)
    }

    /// Returns whether a stream is connected or connecting.
    pub(crate) fn is_open_stream(&self) -> io::Result<bool> {
        self.slot().map(handle::is_open_stream)
    }

    /// Returns and clears the pending error (SO_ERROR).
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self.socket.take_error(self.client()) {
            Ok(()) => Ok(None),
            Err(error @ Error::Refused(_)) => Ok(Some(io_error(error))),
            Err(error) => Err(io_error(error)),
        }
    }

    /// Returns the value of IP_TTL. On an IPv6 socket, this option applies only to IPv4 peers.
    pub(crate) fn ttl(&self) -> io::Result<u32> {
        match self.slot()?.ttl.load(Relaxed) {
            0 => Ok(TTL_DEFAULT),
            ttl => Ok(ttl.into()),
        }
    }

    /// Sets IP_TTL, as [`Self::ttl`] returns it. -1, passed as `u32::MAX`, restores the default.
    pub(crate) fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = match ttl {
            u32::MAX => 0,
            1..=255 => ttl,
            _ => return fail(Errno::INVAL),
        };
        self.change(|slot| slot.ttl.store(ttl as u8, Relaxed))?;
        self.setting(setting::TTL, ttl.into());
        Ok(())
    }

    /// Returns whether IPV6_V6ONLY is set. Fails for an IPv4 socket.
    pub(crate) fn only_v6(&self) -> io::Result<bool> {
        if self.family != INET6 {
            return fail(Errno::OPNOTSUPP);
        }
        self.has_bit(option_bit::V6ONLY)
    }

    pub(crate) fn has_bit(&self, bit: u32) -> io::Result<bool> {
        Ok(self.slot()?.option_bits.load(Relaxed) & bit != 0)
    }

    pub(crate) fn set_bit(&self, bit: u32, on: bool) -> io::Result<()> {
        self.change(|slot| match on {
            true => slot.option_bits.fetch_or(bit, Relaxed),
            false => slot.option_bits.fetch_and(!bit, Relaxed),
        })?;
        Ok(())
    }

    /// Sets a boolean socket option: a bit in the socket's slot, and a setting in the engine.
    pub(crate) fn set_flag(&self, bit: u32, setting: u32, on: bool) -> io::Result<()> {
        self.set_bit(bit, on)?;
        self.setting(setting, on.into());
        Ok(())
    }

    /// Returns the size of the receive buffer in bytes (SO_RCVBUF).
    pub(crate) fn recv_buffer_size(&self) -> io::Result<usize> {
        let set = self.slot()?.rcvbuf.load(Relaxed);
        let size = match set {
            0 if !self.is_tcp()? => DATAGRAM_BUFFER,
            0 if self.is_stream()? && self.is_open_stream()? => {
                let reply = self.call(call::GET_OPTION, |request| {
                    (request.a, request.b) = (SOL_SOCKET, SO_RCVBUF);
                })?;
                let in_use = reply.payload().first_chunk().map_or(0, |n| u32::from_ne_bytes(*n));
                in_use.max(TCP_RCVBUF)
            }
            0 => TCP_RCVBUF,
            set => set,
        };
        Ok(size as usize)
    }

    /// Sets the size of the receive buffer in bytes (SO_RCVBUF). The actual size is twice the
    /// value.
    pub(crate) fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        let cut = cut(bytes);
        self.change(|slot| slot.rcvbuf.store((cut * 2).max(RCVBUF_MIN), Relaxed))?;
        self.setting(setting::RCVBUF, cut.into());
        Ok(())
    }

    /// Returns the size of the send buffer in bytes (SO_SNDBUF).
    pub(crate) fn send_buffer_size(&self) -> io::Result<usize> {
        let slot = self.slot()?;
        let size = match slot.sndbuf.load(Relaxed) {
            0 if !self.is_tcp()? => DATAGRAM_BUFFER,
            0 => {
                let in_use = slot.tx_limit.load(Relaxed).max(slot.tx_goal.load(Relaxed));
                in_use.max(TCP_SNDBUF)
            }
            set => set,
        };
        Ok(size as usize)
    }

    /// Sets the size of the send buffer in bytes (SO_SNDBUF). The actual size is twice the value.
    pub(crate) fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        let cut = cut(bytes);
        self.change(|slot| slot.sndbuf.store((cut * 2).max(SNDBUF_MIN), Relaxed))?;
        self.setting(setting::SNDBUF, cut.into());
        Ok(())
    }

    fn is_tcp(&self) -> io::Result<bool> {
        self.slot().map(handle::is_tcp)
    }

    /// Returns a time limit of the socket: SO_RCVTIMEO or SO_SNDTIMEO, depending on which field is
    /// passed as `limit_us`.
    pub(crate) fn timeout(&self, limit_us: &AtomicU64) -> io::Result<Option<Duration>> {
        self.slot()?;
        Ok(match limit_us.load(Relaxed) {
            0 => None,
            us => Some(Duration::from_micros(us)),
        })
    }

    /// Sets a time limit, SO_RCVTIMEO or SO_SNDTIMEO, depending on which field is passed as
    /// `limit_us`. A shorter time becomes 1 µs.
    pub(crate) fn set_timeout(
        &self,
        limit_us: &AtomicU64,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.slot()?;
        let us = match timeout {
            None => 0,
            Some(Duration::ZERO) => return Err(zero_timeout()),
            Some(timeout) => u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX).max(1),
        };
        limit_us.store(us, Relaxed);
        Ok(())
    }
}

fn cut(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).min(BUFFER_MAX)
}

/// Returns the error of std for a time limit of zero. For SO_RCVTIMEO, zero would mean no limit.
pub(crate) fn zero_timeout() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "cannot set a 0 duration timeout")
}
