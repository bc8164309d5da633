//! Socket options and statistics of TCP connections.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use towpath_shm::control::call;
use towpath_shm::layout::{option_bit, setting};

use super::TcpStream;
use crate::net::handle::TCP;
use crate::net::info::TcpInfo;
use crate::net::keepalive::KeepAlive;

/// Number of the socket option TCP_CONGESTION in Linux.
const TCP_CONGESTION: u32 = 13;
/// Maximum length in bytes of the name of a congestion control algorithm, with its NUL
/// (TCP_CA_NAME_MAX).
const CONGESTION_NAME_MAX: usize = 16;

impl TcpStream {
    /// Disables Nagle's algorithm (TCP_NODELAY): small segments are sent at once, without waiting
    /// for an ACK of earlier ones.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// client.set_nodelay(true)?;
    /// assert!(client.nodelay()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.handle.set_flag(option_bit::NODELAY, setting::NODELAY, nodelay)
    }

    /// Returns whether [`Self::set_nodelay`] is on.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// assert!(!stack.connect(listener.local_addr()?)?.nodelay()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn nodelay(&self) -> io::Result<bool> {
        self.handle.has_bit(option_bit::NODELAY)
    }

    /// Sets the TTL of sent packets: 1 to 255.
    ///
    /// # Errors
    /// `InvalidInput` for other values.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// client.set_ttl(100)?;
    /// assert_eq!(client.ttl()?, 100);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.handle.set_ttl(ttl)
    }

    /// Returns the TTL: 64 unless [set](Self::set_ttl).
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// assert_eq!(stack.connect(listener.local_addr()?)?.ttl()?, 64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(&self) -> io::Result<u32> {
        self.handle.ttl()
    }

    /// Sets the behavior when the last handle is dropped (SO_LINGER):
    /// - `None`: returns at once, and written data is sent afterwards;
    /// - less than a second: drops unsent data, and resets the connection;
    /// - longer: waits until the peer has acknowledged all data, at most for this time, in whole
    ///   seconds.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// use std::io::{ErrorKind, Read};
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// let (mut server, _) = listener.accept()?;
    /// client.set_linger(Some(Duration::ZERO))?;
    /// drop(client);
    /// assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        let value = linger.map_or(0, |linger| {
            u32::try_from(linger.as_secs()).unwrap_or(u32::MAX - 1).saturating_add(1)
        });
        self.handle.change(|slot| slot.linger.store(value, Relaxed))?;
        self.handle.setting(setting::LINGER, value.into());
        Ok(())
    }

    /// Returns the time of [`Self::set_linger`], in whole seconds.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// assert_eq!(stack.connect(listener.local_addr()?)?.linger()?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        let value = self.handle.slot()?.linger.load(Relaxed);
        Ok(value.checked_sub(1).map(|seconds| Duration::from_secs(seconds.into())))
    }

    /// Enables keepalive probes, which end the connection with `TimedOut` if the peer does not
    /// reply. `None` disables them.
    ///
    /// # Errors
    /// `InvalidInput` for times outside 1 to 32,767 s, or a number of probes outside 1 to 127.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use towpath::net::KeepAlive;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// client.set_keepalive(Some(KeepAlive::new().idle(Duration::from_secs(30))))?;
    /// assert_eq!(client.keepalive()?.unwrap().idle, Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_keepalive(&self, keepalive: Option<KeepAlive>) -> io::Result<()> {
        if let Some(keepalive) = keepalive {
            let [idle, interval, probes] = keepalive.words()?;
            self.handle.change(|slot| {
                slot.keepidle.store(idle, Relaxed);
                slot.keepintvl.store(interval, Relaxed);
                slot.keepcnt.store(probes as u16, Relaxed);
            })?;
        }
        self.handle.set_flag(option_bit::KEEPALIVE, setting::KEEPALIVE, keepalive.is_some())
    }

    /// Returns the keepalive parameters; `None` if disabled, which is the default.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// assert_eq!(stack.connect(listener.local_addr()?)?.keepalive()?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn keepalive(&self) -> io::Result<Option<KeepAlive>> {
        if !self.handle.has_bit(option_bit::KEEPALIVE)? {
            return Ok(None);
        }
        let slot = self.handle.slot()?;
        let [idle, interval] = [&slot.keepidle, &slot.keepintvl].map(|word| word.load(Relaxed));
        Ok(Some(KeepAlive::from_words([idle, interval, slot.keepcnt.load(Relaxed).into()])))
    }

    /// Sets the size of the receive buffer (SO_RCVBUF), which limits the receive window. The actual
    /// size is twice `bytes`, as on Linux; `bytes` is limited to 4 MiB. By default the size is
    /// adjusted automatically.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// client.set_recv_buffer_size(100_000)?;
    /// assert_eq!(client.recv_buffer_size()?, 200_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.handle.set_recv_buffer_size(bytes)
    }

    /// Returns the size of the receive buffer in bytes: twice the value that was set. If none was
    /// set, returns the current automatic size.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// See [`Self::set_recv_buffer_size`].
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        self.handle.recv_buffer_size()
    }

    /// Sets the size of the send buffer (SO_SNDBUF). The actual size is twice `bytes`, as on Linux;
    /// `bytes` is limited to 4 MiB. By default the size is adjusted automatically.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// client.set_send_buffer_size(100_000)?;
    /// assert_eq!(client.send_buffer_size()?, 200_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.handle.set_send_buffer_size(bytes)
    }

    /// Returns the size of the send buffer in bytes: twice the value that was set. If none was set,
    /// returns the current automatic size.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// See [`Self::set_send_buffer_size`].
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        self.handle.send_buffer_size()
    }

    /// Sets the congestion control algorithm by name: "cubic" or "reno" (TCP_CONGESTION).
    ///
    /// # Errors
    /// `NotFound` for an unknown name, `InvalidInput` for an empty one.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// let client = stack.connect(listener.local_addr()?)?;
    /// client.set_congestion("reno")?;
    /// assert_eq!(client.congestion()?, "reno");
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        // Linux truncates a longer name before it looks the algorithm up.
        let name = &name.as_bytes()[..name.len().min(CONGESTION_NAME_MAX - 1)];
        let request = self.handle.call(call::SET_OPTION, |request| {
            (request.a, request.b) = (TCP, TCP_CONGESTION);
            request.data[..name.len()].copy_from_slice(name);
            request.len = name.len() as u32;
        });
        request.map(drop)
    }

    /// Returns the name of the congestion control algorithm.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// # let listener = stack.listen("127.0.0.1:0")?;
    /// assert_eq!(stack.connect(listener.local_addr()?)?.congestion()?, "cubic");
    /// # Ok(())
    /// # }
    /// ```
    pub fn congestion(&self) -> io::Result<String> {
        let reply = self.handle.call(call::GET_OPTION, |request| {
            (request.a, request.b) = (TCP, TCP_CONGESTION);
        })?;
        let name = reply.payload().split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// Returns the state and statistics of the connection (TCP_INFO).
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    /// use towpath::net::TcpState;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let mut client = stack.connect(listener.local_addr()?)?;
    /// client.write_all(b"hello")?;
    /// let info = client.info()?;
    /// assert_eq!(info.state, TcpState::Established);
    /// assert_eq!(info.retransmits_total, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn info(&self) -> io::Result<TcpInfo> {
        TcpInfo::of(&self.handle)
    }
}
