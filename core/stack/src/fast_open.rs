//! TCP Fast Open (RFC 7413): cookies, and handshakes under way whose first bytes came in the SYN.
//!
//! A server gives a client's address a cookie, which is a keyed hash of both addresses: nothing is
//! kept for it. A client keeps the cookies of servers, with the MSS that they announced, in a table
//! of bounded size. `core/tcp` says what becomes of the bytes.
//!
//! A SYN with a valid cookie makes a connection at once: it takes a place in the accept queue, and
//! none in the SYN cache. A flood of SYNs without cookies therefore does not concern it. Cookies
//! can be stolen or replayed from a client's own address, so that a listener has a limit of such
//! connections whose handshake is under way (RFC 7413 §5.1).

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

use towpath_pool::Pool;
use towpath_ring::RecvBuffer;
use towpath_tcp::{Buffers, Config, Connection, Instant, SeqNum, isn};
use towpath_wire::fast_open::{Cookie, FastOpen};

use crate::flow::{Flow, FlowRef};
use crate::host::{Host, SocketId};
use crate::incoming::Incoming;
use crate::limits;
use crate::net::hash::Keyed;
use crate::net::lru::Lru;
use crate::passive::{NewChild, headers_of};
use crate::socket::{Kind, Listener, Socket, Stream};
use crate::stack::Stack;

/// MSS of a server that announced none, for the bytes of a SYN (RFC 7413 §4.1.3).
const MSS_UNKNOWN: u16 = 536;

/// What a stack knows of Fast Open.
#[derive(Debug)]
pub(crate) struct FastOpens {
    key: Keyed,
    /// What is known of servers, by our address and theirs: the cookie goes by both.
    servers: Lru<(IpAddr, IpAddr), Server>,
    /// Handshakes under way, by the index of their sockets.
    opening: BTreeMap<u32, Opening>,
    /// Listeners whose connections were reset in their handshake, and until when each counts.
    resets: VecDeque<(Instant, SocketId)>,
}

/// A server, as a client knows it.
#[derive(Debug, Clone, Copy, Default)]
struct Server {
    cookie: Option<Cookie>,
    /// MSS that it announced, 0: none.
    mss: u16,
    /// Attempts in a row whose SYN had to be sent again.
    losses: u8,
    /// No SYN has the option before.
    off_until: Instant,
}

/// A handshake under way.
#[derive(Debug, Clone, Copy)]
enum Opening {
    /// Of a connect: the option of its SYN.
    Client(FastOpen),
    /// Of a child of this listener.
    Server(SocketId),
}

/// How an active open begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// With a SYN alone.
    Plain,
    /// With a SYN that asks for a cookie.
    Asking,
    /// With a SYN that has a cookie and bytes, of a server with this MSS.
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
    fn cookie_for(&self, flow: &Flow) -> Cookie {
        let mut hasher = self.key.build_hasher();
        for ip in [flow.remote, flow.local] {
            match ip.to_canonical() {
                IpAddr::V4(v4) => hasher.write(&v4.to_ipv6_mapped().octets()),
                IpAddr::V6(v6) => hasher.write(&v6.octets()),
            }
        }
        Cookie::new(&hasher.finish().to_be_bytes()).expect("eight bytes are a cookie")
    }

    /// How a connect to a server begins.
    pub fn begin(&mut self, now: Instant, flow: &Flow) -> Beginning {
        match self.servers.get_mut(&(flow.local, flow.remote)) {
            Some(server) if now < server.off_until => Beginning::Plain,
            Some(Server { cookie: Some(cookie), mss, .. }) => {
                let mss = if *mss == 0 { MSS_UNKNOWN } else { *mss };
                Beginning::WithBytes(*cookie, mss)
            }
            _ => Beginning::Asking,
        }
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
    fn on_no_answer(&mut self, now: Instant, flow: &Flow) {
        let key = (flow.local, flow.remote);
        let mut server = self.servers.get_mut(&key).copied().unwrap_or_default();
        server.note_attempt(now, true);
        self.servers.insert(key, server);
    }

    /// Handshakes of listeners that were reset long enough ago, one at a time.
    fn pop_reset(&mut self, now: Instant) -> Option<SocketId> {
        let (until, listener) = *self.resets.front()?;
        if now < until {
            return None;
        }
        self.resets.pop_front();
        Some(listener)
    }
}

impl Server {
    /// A path that drops SYNs with the option costs a timeout each time, so that none has it for a
    /// while: for a minute after the first loss, and each time twice as long, as Linux did by
    /// `last_syn_loss`.
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
pub(crate) enum End {
    /// It is over, or the socket is gone.
    Over,
    /// The peer reset the connection.
    Reset,
    /// The peer did not answer.
    NoAnswer,
}

impl<H: Host> Stack<H> {
    /// The handshake of a socket has ended. True: it was that of a listener's child, which the
    /// owner knows as connected.
    pub(crate) fn end_fast_open(&mut self, now: Instant, index: u32, end: End) -> bool {
        if self.fast_opens.opening.is_empty() {
            return false;
        }
        match self.fast_opens.opening.remove(&index) {
            None => false,
            Some(Opening::Client(_)) => {
                let socket = self.sockets.get(index).map(|socket| &socket.kind);
                if let (End::NoAnswer, Some(Kind::Stream(stream))) = (end, socket) {
                    self.fast_opens.on_no_answer(now, &stream.flow);
                }
                false
            }
            Some(Opening::Server(listener)) => {
                // RFC 7413 §5.1: somebody may have opened in the name of a client that resets.
                // Such a place stays taken for a while, as on Linux.
                match end {
                    End::Reset => {
                        let until = now + limits::FAST_OPEN_RESET_TIME;
                        self.fast_opens.resets.push_back((until, listener));
                    }
                    _ => self.free_fast_open(listener),
                }
                true
            }
        }
    }

    fn free_fast_open(&mut self, listener: SocketId) {
        let index = self.index(listener);
        let socket = index.and_then(|index| self.sockets.get_mut(index));
        if let Some(Kind::Listener(state)) = socket.map(|socket| &mut socket.kind) {
            state.fast_opening = state.fast_opening.saturating_sub(1);
        }
    }

    /// The option of a SYN, if its listener takes it.
    pub(crate) fn fast_open_offer(
        &self,
        listener: &Listener,
        incoming: &Incoming,
    ) -> Option<FastOpen> {
        if listener.settings.fast_open_queue == 0 {
            return None;
        }
        FastOpen::find(incoming.header())
    }

    /// Whether a SYN has the cookie that its sender's address gets here.
    pub(crate) fn has_valid_cookie(&self, listener: &Listener, incoming: &Incoming) -> bool {
        match self.fast_open_offer(listener, incoming) {
            Some(FastOpen::Cookie(cookie)) => cookie == self.fast_opens.cookie_for(&incoming.flow),
            _ => false,
        }
    }

    /// The option of a SYN-ACK: the cookie for its receiver.
    pub(crate) fn given_cookie(&self, flow: &Flow) -> FastOpen {
        FastOpen::Cookie(self.fast_opens.cookie_for(flow))
    }

    /// Makes a connection of a SYN with a valid cookie. False: the listener has no room for it now,
    /// and the SYN begins a handshake as any other.
    pub(crate) fn accept_fast(
        &mut self,
        now: Instant,
        host: &mut H,
        index: u32,
        incoming: &Incoming,
        iss_min: Option<SeqNum>,
    ) -> bool {
        while let Some(listener) = self.fast_opens.pop_reset(now) {
            self.free_fast_open(listener);
        }
        let Some(Kind::Listener(listener)) = self.sockets.get(index).map(|socket| &socket.kind)
        else {
            return false;
        };
        if listener.fast_opening >= listener.settings.fast_open_queue {
            self.counters.tcp_fast_open_overflows += 1;
            return false;
        }
        let listener = SocketId(self.sockets.id(index));
        let Ok(child) = self.new_child(host, index, false, incoming) else { return false };
        let saves_syn = child.settings.save_syn;
        let connected = self.connect_child(now, child, incoming, iss_min);
        if saves_syn {
            self.saved_syns.insert(connected, headers_of(incoming));
        }
        self.fast_opens.opening.insert(connected, Opening::Server(listener));
        if let Some(Kind::Listener(state)) =
            self.sockets.get_mut(index).map(|socket| &mut socket.kind)
        {
            state.fast_opening += 1;
        }
        self.counters.tcp_accepts += 1;
        self.counters.tcp_fast_opens += 1;
        true
    }

    /// The socket of a child in SYN-RECEIVED, with the bytes of its SYN.
    fn connect_child(
        &mut self,
        now: Instant,
        child: NewChild<H>,
        incoming: &Incoming,
        iss_min: Option<SeqNum>,
    ) -> u32 {
        let NewChild { user, family, recv, send, offer, settings, sharing } = child;
        let Incoming { flow, hash, ref segment, ref local, .. } = *incoming;
        let iss = isn::initial_sequence(self.keys.isn.flow(&flow), now);
        let iss = iss_min.map_or(iss, |min| isn::not_before(min, iss));
        let buffers = Buffers {
            recv_free: recv.free(),
            recv_capacity: recv.capacity(),
            ..Buffers::default()
        };
        let iface = settings.device.or(self.pinned(local.iface, &flow));
        let config = self.tcp_config(now, &settings, &flow, iface);
        let offset = self.timestamp_offset(&flow);
        let (connection, received) =
            Connection::accept_with_data(config, segment, iss, offset, now, buffers);
        let mut stream = self.stream_with(now, flow, connection, settings, iface, recv, send);
        if let Some(write) = received.write {
            let bytes = incoming.payload().slice(write.payload_offset, write.len);
            match stream.recv.write_at(write.fifo_offset, &bytes) {
                true => {
                    stream.recv.commit(received.commit);
                    stream.news.add_readable();
                    self.counters.tcp_bytes_received += u64::from(received.commit);
                }
                // As `rx` does where a buffer does not take what it said that it would.
                false => stream.connection.iter_mut().for_each(Connection::abort),
            }
        }
        let stream = Stream { uses_port: sharing, ..stream };
        let at = self.sockets.insert(Socket::new(user, family, Kind::Stream(Box::new(stream))));
        self.flows.insert(hash, FlowRef::Socket(at));
        self.offer_child(now, at, offer);
        self.mark_dirty(at);
        at
    }

    /// The connection of a connect that may use Fast Open, by what is known of the server.
    pub(crate) fn connect_fast(
        &mut self,
        now: Instant,
        flow: &Flow,
        config: Config,
        iss: SeqNum,
    ) -> (Connection, Beginning) {
        let offset = self.timestamp_offset(flow);
        let beginning = self.fast_opens.begin(now, flow);
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

    /// Takes a SYN with a valid cookie, if it has one and its listener has room.
    pub(crate) fn take_fast_syn(
        &mut self,
        now: Instant,
        host: &mut H,
        index: u32,
        incoming: Incoming,
        iss_min: Option<SeqNum>,
        pool: &mut Pool,
    ) -> Result<(), Incoming> {
        let Some(Kind::Listener(listener)) = self.sockets.get(index).map(|socket| &socket.kind)
        else {
            return Err(incoming);
        };
        if !self.has_valid_cookie(listener, &incoming)
            || !self.accept_fast(now, host, index, &incoming, iss_min)
        {
            return Err(incoming);
        }
        pool.give(incoming.local.packet);
        Ok(())
    }
}
