//! TCP Fast Open (RFC 7413): cookies, and the handshakes in progress whose SYN contains data.
//!
//! A server sends each client a cookie, which is a keyed hash of both addresses, and stores
//! nothing. A client stores the cookies of servers, with their announced MSS, in a table of bounded
//! size. `syn_bytes` creates connections from SYNs with data, and `core/tcp` stores the bytes.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher;
use std::net::IpAddr;

use siphasher::sip::SipHasher24;
use towpath_tcp::{Config, Connection, FastOpenKeys, FastOpenModes, Instant, SeqNum};
use towpath_wire::fast_open::{Cookie, FastOpen};

use crate::host::SocketId;
use crate::incoming::IncomingSegment;
use crate::limits;
use crate::net::hash::Keyed;
use crate::net::lru::Lru;
use crate::settings::StreamSettings;
use crate::tables::flow::Flow;
use crate::tcp::listener::ListeningSocket;

/// Maximum segment size for the data in a SYN, if the server has announced none (RFC 7413 §4.1.3).
const MSS_UNKNOWN: u16 = 536;

/// State of TCP Fast Open in a stack.
#[derive(Debug)]
pub(crate) struct FastOpens {
    /// Keys of Fast Open cookies, for listeners that have no keys of their own.
    keys: FastOpenKeys,
    /// Servers that support Fast Open, by local and remote address, because a cookie depends on
    /// both addresses.
    servers: Lru<(IpAddr, IpAddr), KnownServer>,
    /// Fast Open handshakes in progress, by the index of the socket.
    pub opening: BTreeMap<u32, Opening>,
    /// Listeners of Fast Open connections that were reset during their handshake, and the time
    /// until which each counts toward the listener's limit.
    pub resets: VecDeque<(Instant, SocketId)>,
}

/// Cookie and other data that a client stores about a server that supports TCP Fast Open.
#[derive(Debug, Clone, Copy, Default)]
struct KnownServer {
    cookie: Option<Cookie>,
    /// Maximum segment size that the server has announced; 0 if it has announced none.
    mss: u16,
    /// Number of consecutive connection attempts in which the SYN had to be retransmitted.
    losses: u8,
    /// Time before which SYNs to this server do not contain the Fast Open option.
    off_until: Instant,
}

/// A TCP Fast Open handshake in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Opening {
    /// A connection that this host opens, with the Fast Open option of its SYN, if any.
    Client(Option<FastOpen>),
    /// A passive open, with the listener of the child, and the option of the SYN-ACK.
    Server(SocketId, Option<FastOpen>),
}

/// First segment of a connection that this host opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// Send a SYN without the Fast Open option.
    Plain,
    /// Send a SYN that requests a cookie.
    Asking,
    /// Send a SYN with data and this Fast Open cookie, to a server with this maximum segment size.
    /// If there is no cookie, the SYN has no Fast Open option.
    WithBytes(Option<Cookie>, u16),
}

impl FastOpens {
    pub fn new(keys: FastOpenKeys, table: Keyed) -> Self {
        Self {
            keys,
            servers: Lru::new(limits::FAST_OPEN_SERVERS_MAX, table),
            opening: BTreeMap::new(),
            resets: VecDeque::new(),
        }
    }

    /// Returns the number of known servers.
    #[cfg(test)]
    pub fn known(&self) -> usize {
        self.servers.len()
    }

    /// Replaces the keys of listeners whose program has set none.
    pub fn set_keys(&mut self, keys: FastOpenKeys) {
        self.keys = keys;
    }

    /// Returns the keys of a listener's cookies.
    pub fn keys_of(&self, settings: &StreamSettings) -> FastOpenKeys {
        settings.tcp.fast_open_keys.unwrap_or(self.keys)
    }

    /// Returns whether a SYN may create a connection at once. The listener must permit Fast Open,
    /// and the SYN must contain the valid cookie for its source address. In the mode without
    /// cookies, data or the Fast Open option is enough.
    pub fn may_open(
        &self,
        modes: FastOpenModes,
        listener: &ListeningSocket,
        incoming: &IncomingSegment,
    ) -> bool {
        //= https://www.rfc-editor.org/rfc/rfc7413#section-4.2
        //# When this flag is off, the server does not perform any TFO-related operations and MUST
        //# ignore all cookie options.
        if listener.settings.fast_open_queue == 0 || !modes.server() {
            return false;
        }
        let option = FastOpen::find(incoming.header());
        match modes.accepts_without_cookie() {
            true => option.is_some() || incoming.segment.payload_len > 0,
            false => option.is_some_and(|option| {
                let keys = self.keys_of(&listener.settings);
                let mut all = [keys.primary].into_iter().chain(keys.backup);
                all.any(|key| option == FastOpen::Cookie(cookie_for(key, &incoming.flow)))
            }),
        }
    }

    /// Returns the Fast Open option for a SYN-ACK. The option contains the cookie for the client.
    pub fn cookie_option(&self, settings: &StreamSettings, flow: &Flow) -> FastOpen {
        FastOpen::Cookie(cookie_for(self.keys_of(settings).primary, flow))
    }

    /// Returns the Fast Open option with a new cookie, if the cookie in the SYN was created with
    /// the backup key.
    pub fn renewal(
        &self,
        settings: &StreamSettings,
        incoming: &IncomingSegment,
    ) -> Option<FastOpen> {
        let (backup, flow) = (self.keys_of(settings).backup?, &incoming.flow);
        let option = FastOpen::find(incoming.header())?;
        let is_old = option == FastOpen::Cookie(cookie_for(backup, flow));
        is_old.then(|| self.cookie_option(settings, flow))
    }

    /// Decides which SYN a connection to a server begins with, depending on what is known about the
    /// server.
    pub fn begin(&mut self, now: Instant, flow: &Flow, modes: FastOpenModes) -> Beginning {
        let server = self.servers.get_mut(&(flow.local, flow.remote));
        let mss = server.as_ref().map(|server| server.mss).filter(|mss| *mss != 0);
        let mss = mss.unwrap_or(MSS_UNKNOWN);
        match server {
            //= https://www.rfc-editor.org/rfc/rfc7413#section-4.1.3.1
            //# the client SHOULD disable Fast Open on the specific path (the source and destination
            //# IP addresses and ports) at least temporarily.
            Some(server) if now < server.off_until => Beginning::Plain,
            _ if modes.sends_without_cookie() => Beginning::WithBytes(None, mss),
            //= https://www.rfc-editor.org/rfc/rfc7413#section-4.2.2
            //# To open a TFO connection, the client MUST have obtained a cookie from the server:
            Some(&mut KnownServer { cookie: Some(cookie), .. }) => {
                Beginning::WithBytes(Some(cookie), mss)
            }
            //= https://www.rfc-editor.org/rfc/rfc7413#section-4.2.1
            //# Any client attempting TFO MUST first request a cookie from the server
            _ => Beginning::Asking,
        }
    }

    /// Begins a connection with Fast Open, if the server is known to support it. `offset` is the
    /// timestamp offset of the connection.
    pub fn connect(
        &mut self,
        now: Instant,
        flow: &Flow,
        config: Config,
        iss: SeqNum,
        offset: u32,
    ) -> (Connection, Beginning) {
        let beginning = self.begin(now, flow, config.fast_open);
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

    /// Stores the Fast Open option that the SYN of a socket must have according to `beginning`.
    pub fn opens(&mut self, index: u32, beginning: Beginning) {
        let option = match beginning {
            Beginning::Plain => return,
            Beginning::Asking => Some(FastOpen::Request),
            Beginning::WithBytes(cookie, _) => cookie.map(FastOpen::Cookie),
        };
        self.opening.insert(index, Opening::Client(option));
    }

    /// Returns the option of the socket's first SYN or SYN-ACK.
    pub fn option_of_syn(&self, index: u32) -> Option<FastOpen> {
        match self.opening.get(&index)? {
            Opening::Client(option) | Opening::Server(_, option) => *option,
        }
    }

    /// Handles the SYN-ACK of a server. `repeated` states whether the SYN was retransmitted.
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
            //= https://www.rfc-editor.org/rfc/rfc7413#section-4.1.3
            //# The client MUST cache cookies from servers for later Fast Open connections.
            server.cookie = Some(cookie);
        }
        //= https://www.rfc-editor.org/rfc/rfc7413#section-4.2.2
        //# If the SYN-ACK has a Fast Open option, an MSS option, or both, update the corresponding
        //# cookie and MSS information in the cookie cache.
        server.mss = mss.unwrap_or(0);
        //= https://www.rfc-editor.org/rfc/rfc7413#section-4.2.1
        //# We also RECOMMEND the client to record the set of servers that failed to respond to
        //# cookie requests and only attempt another cookie request after a certain period.
        server.note_attempt(now, repeated);
        if server.cookie.is_some() || repeated {
            self.servers.insert(key, server);
        }
    }

    /// Handles the failure of a connect whose SYN was never answered.
    pub fn on_no_answer(&mut self, now: Instant, flow: &Flow) {
        let key = (flow.local, flow.remote);
        let mut server = self.servers.get_mut(&key).copied().unwrap_or_default();
        server.note_attempt(now, true);
        self.servers.insert(key, server);
    }

    /// Returns a listener with a reset handshake that no longer counts toward its Fast Open limit,
    /// if there is one. Call this until it returns `None`.
    pub fn pop_reset(&mut self, now: Instant) -> Option<SocketId> {
        let (until, listener) = *self.resets.front()?;
        if now < until {
            return None;
        }
        self.resets.pop_front();
        Some(listener)
    }
}

/// Returns the cookie for a client's address: that of Linux, so that hosts of both kinds can share
/// a key.
//= https://www.rfc-editor.org/rfc/rfc7413#section-4.1.2
//# The cookie SHOULD be a MAC tag with the following properties.
fn cookie_for(key: [u64; 2], flow: &Flow) -> Cookie {
    let mut hasher = SipHasher24::new_with_keys(key[0], key[1]);
    for ip in [flow.remote, flow.local] {
        match ip.to_canonical() {
            IpAddr::V4(v4) => hasher.write(&v4.octets()),
            IpAddr::V6(v6) => hasher.write(&v6.octets()),
        }
    }
    Cookie::new(&hasher.finish().to_le_bytes()).expect("eight bytes are a cookie")
}

impl KnownServer {
    /// Updates what is known about a server after a connection attempt. If a path drops SYNs with
    /// the Fast Open option, each attempt costs a timeout. After the first loss, SYNs therefore
    /// omit the option for a minute, and for twice as long after each further loss (Linux's
    /// `last_syn_loss`).
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

/// Result of a TCP Fast Open handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakeEnd {
    /// The handshake is complete, or its socket was removed.
    Over,
    /// The peer reset the connection during the handshake.
    Reset,
    /// The peer did not answer the handshake.
    NoAnswer,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_those_of_linux() {
        let keys = FastOpenKeys::from_word("a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4").expect("a key");
        for (local, remote, cookie) in [
            ("192.168.0.1", "192.0.2.1", 0x3021_b9d8_8901_7eeb_u64),
            ("fd3d:a0b:17d6::1", "fd3d:fa7b:d17d::1", 0xc1d1_e974_2a47_a9bc),
            ("::ffff:192.168.0.1", "::ffff:192.0.2.1", 0x3021_b9d8_8901_7eeb),
        ] {
            let ip = |text: &str| text.parse().expect("an address");
            let flow =
                Flow { local: ip(local), local_port: 80, remote: ip(remote), remote_port: 1 };
            assert_eq!(cookie_for(keys.primary, &flow).as_bytes(), cookie.to_be_bytes());
        }
    }
}
