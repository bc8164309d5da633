//! TCP Fast Open (RFC 7413): cookies, and handshakes under way whose first bytes are in the SYN.
//!
//! A server gives a client's address a cookie, a keyed hash of both addresses, and keeps no state
//! for it. A client keeps the cookies of servers, with their announced MSS, in a table of bounded
//! size. `syn_bytes` makes connections from SYNs with data, and `core/tcp` places the bytes.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

use towpath_tcp::{Config, Connection, Instant, SeqNum};
use towpath_wire::fast_open::{Cookie, FastOpen};

use crate::host::SocketId;
use crate::incoming::IncomingSegment;
use crate::limits;
use crate::net::hash::Keyed;
use crate::net::lru::Lru;
use crate::tables::flow::Flow;
use crate::tcp::listener::ListeningSocket;

/// MSS of a server that announced none, for the bytes of a SYN (RFC 7413 §4.1.3).
const MSS_UNKNOWN: u16 = 536;

/// State of Fast Open in a stack.
#[derive(Debug)]
pub(crate) struct FastOpens {
    key: Keyed,
    /// Servers by our address and theirs, since a cookie goes by both.
    servers: Lru<(IpAddr, IpAddr), KnownServer>,
    /// Handshakes under way, by the index of their sockets.
    pub opening: BTreeMap<u32, Opening>,
    /// Listeners whose connections were reset in their handshake, and until when each counts.
    pub resets: VecDeque<(Instant, SocketId)>,
}

/// A server, as a client knows it.
#[derive(Debug, Clone, Copy, Default)]
struct KnownServer {
    cookie: Option<Cookie>,
    /// MSS that it announced, 0: none.
    mss: u16,
    /// Attempts in a row whose SYN had to be sent again.
    losses: u8,
    /// Time before which no SYN has the option.
    off_until: Instant,
}

/// A handshake under way.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Opening {
    /// Option of the SYN of a connect.
    Client(FastOpen),
    /// Listener whose child it is.
    Server(SocketId),
}

/// Beginning of an active open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// A SYN alone.
    Plain,
    /// A SYN that asks for a cookie.
    Asking,
    /// A SYN with a cookie and bytes, to a server with this MSS.
    WithBytes(Cookie, u16),
}

impl FastOpens {
    pub fn new(key: Keyed, table: Keyed) -> Self {
        Self {
            key,
            servers: Lru::new(limits::FAST_OPEN_SERVERS_MAX, table),
            opening: BTreeMap::new(),
            resets: VecDeque::new(),
        }
    }

    /// Another secret, by which the cookies given so far are not valid.
    #[cfg(test)]
    pub fn set_key(&mut self, key: Keyed) {
        self.key = key;
    }

    /// Servers of which something is known.
    #[cfg(test)]
    pub fn known(&self) -> usize {
        self.servers.len()
    }

    /// The cookie that a client's address gets here.
    pub fn cookie_for(&self, flow: &Flow) -> Cookie {
        let mut hasher = self.key.build_hasher();
        for ip in [flow.remote, flow.local] {
            match ip.to_canonical() {
                IpAddr::V4(v4) => hasher.write(&v4.to_ipv6_mapped().octets()),
                IpAddr::V6(v6) => hasher.write(&v6.octets()),
            }
        }
        Cookie::new(&hasher.finish().to_be_bytes()).expect("eight bytes are a cookie")
    }

    /// Whether a SYN has the cookie that its sender's address gets here, and the listener takes it.
    pub fn has_valid_cookie(&self, listener: &ListeningSocket, segment: &IncomingSegment) -> bool {
        listener.settings.fast_open_queue > 0
            && FastOpen::find(segment.header())
                .is_some_and(|option| option == self.cookie_option(&segment.flow))
    }

    /// The option of a SYN-ACK: the cookie for its receiver.
    pub fn cookie_option(&self, flow: &Flow) -> FastOpen {
        FastOpen::Cookie(self.cookie_for(flow))
    }

    /// Beginning of a connect to a server.
    pub fn begin(&mut self, now: Instant, flow: &Flow) -> Beginning {
        match self.servers.get_mut(&(flow.local, flow.remote)) {
            Some(server) if now < server.off_until => Beginning::Plain,
            Some(KnownServer { cookie: Some(cookie), mss, .. }) => {
                let mss = if *mss == 0 { MSS_UNKNOWN } else { *mss };
                Beginning::WithBytes(*cookie, mss)
            }
            _ => Beginning::Asking,
        }
    }

    /// Opens the connection of a connect with Fast Open, as far as the server is known. `offset` is
    /// that of its timestamps.
    pub fn connect(
        &mut self,
        now: Instant,
        flow: &Flow,
        config: Config,
        iss: SeqNum,
        offset: u32,
    ) -> (Connection, Beginning) {
        let beginning = self.begin(now, flow);
        let connection = match beginning {
            Beginning::WithBytes(_, mss) => {
                let config = Config { mss_default: mss, ..config };
                Connection::connect_with_data(config, iss, offset, now)
            }
            Beginning::Asking | Beginning::Plain => {
                let mut connection = Connection::connect(config, iss, offset, now);
                connection.note_no_cookie();
                connection
            }
        };
        (connection, beginning)
    }

    /// The socket's SYN has the option that `beginning` says.
    pub fn opens(&mut self, index: u32, beginning: Beginning) {
        let option = match beginning {
            Beginning::Plain => return,
            Beginning::Asking => FastOpen::Request,
            Beginning::WithBytes(cookie, _) => FastOpen::Cookie(cookie),
        };
        self.opening.insert(index, Opening::Client(option));
    }

    /// The option of the socket's SYN.
    pub fn option_of_syn(&self, index: u32) -> Option<FastOpen> {
        match self.opening.get(&index)? {
            Opening::Client(option) => Some(*option),
            Opening::Server(_) => None,
        }
    }

    /// A server answered the SYN of a socket. `repeated`: not the first one.
    #[cold]
    pub fn on_syn_ack(
        &mut self,
        now: Instant,
        index: u32,
        flow: &Flow,
        mss: Option<u16>,
        header: &[u8],
        repeated: bool,
    ) {
        if !matches!(self.opening.get(&index), Some(Opening::Client(_))) {
            return;
        }
        self.opening.remove(&index);
        let key = (flow.local, flow.remote);
        let mut server = self.servers.get_mut(&key).copied().unwrap_or_default();
        if let Some(FastOpen::Cookie(cookie)) = FastOpen::find(header) {
            server.cookie = Some(cookie);
            server.mss = mss.unwrap_or(0);
        }
        server.note_attempt(now, repeated);
        if server.cookie.is_some() || repeated {
            self.servers.insert(key, server);
        }
    }

    /// The peer never answered the SYN of a socket.
    pub fn on_no_answer(&mut self, now: Instant, flow: &Flow) {
        let key = (flow.local, flow.remote);
        let mut server = self.servers.get_mut(&key).copied().unwrap_or_default();
        server.note_attempt(now, true);
        self.servers.insert(key, server);
    }

    /// Handshakes of listeners that were reset long enough ago, one at a time.
    pub fn pop_reset(&mut self, now: Instant) -> Option<SocketId> {
        let (until, listener) = *self.resets.front()?;
        if now < until {
            return None;
        }
        self.resets.pop_front();
        Some(listener)
    }
}

impl KnownServer {
    /// A path that drops SYNs with the option costs a timeout each time. SYNs have none for a
    /// minute after the first loss, and each time twice as long (Linux's `last_syn_loss`).
    fn note_attempt(&mut self, now: Instant, lost: bool) {
        if !lost {
            self.losses = 0;
            return;
        }
        let pause = limits::FAST_OPEN_PAUSE * (1 << self.losses);
        self.losses = (self.losses + 1).min(limits::FAST_OPEN_DOUBLINGS_MAX);
        self.off_until = now + pause;
    }
}

/// End of a handshake with Fast Open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakeEnd {
    /// The handshake is over, or the socket is gone.
    Over,
    /// The peer reset the connection.
    Reset,
    /// The peer did not answer.
    NoAnswer,
}
