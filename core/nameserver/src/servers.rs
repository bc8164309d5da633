//! Upstream servers: which one to ask, and when to ask a failed one again.

use core::net::SocketAddr;
use core::time::Duration;

use towpath_tcp::Instant;

/// Maximum number of upstream servers.
pub const SERVERS_MAX: usize = 8;
/// Number of unanswered messages in a row after which a server has failed.
const FAILURES_MAX: u32 = 3;
/// Time after which a failed server is asked again, which doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(10);
const RETRY_MAX: Duration = Duration::from_secs(320);
/// Time for which a server that does not support EDNS(0) is asked without it.
const PLAIN_HOLD: Duration = Duration::from_secs(3600);

/// An upstream server, and what is known about it.
#[derive(Debug, Clone)]
struct RankedServer {
    address: SocketAddr,
    /// Number of unanswered messages since the last answer.
    failures: u32,
    /// Time at which a failed server is asked again; `None` if it has not failed.
    retry_at: Option<Instant>,
    /// Time between the latest two attempts with a failed server.
    backoff: Duration,
    /// Time until which the server is asked without EDNS(0).
    plain_until: Option<Instant>,
}

/// Upstream servers in order of preference.
#[derive(Debug, Default)]
pub struct ServerList(Vec<RankedServer>);

impl ServerList {
    /// Replaces the servers. State of servers that remain is kept.
    pub fn set(&mut self, addresses: &[SocketAddr]) {
        let known = std::mem::take(&mut self.0);
        for address in addresses.iter().copied().take(SERVERS_MAX) {
            if self.0.iter().any(|server| server.address == address) {
                continue;
            }
            let old = known.iter().find(|server| server.address == address).cloned();
            self.0.push(old.unwrap_or(RankedServer {
                address,
                failures: 0,
                retry_at: None,
                backoff: RETRY_MIN,
                plain_until: None,
            }));
        }
    }

    /// Returns the addresses of the servers.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.iter().map(|server| server.address)
    }

    /// Returns the addresses of servers that have failed.
    pub fn failed(&self) -> impl Iterator<Item = SocketAddr> {
        let failed = self.0.iter().filter(|server| server.retry_at.is_some());
        failed.map(|server| server.address)
    }

    /// Returns the first server that is not in `tried`. Failed servers come last, unless their
    /// retry time has come: then one query is sent to them, and other queries go to other servers.
    pub fn choose(&mut self, now: Instant, tried: &[SocketAddr]) -> Option<SocketAddr> {
        let is_left = |server: &&mut RankedServer| !tried.contains(&server.address);
        let is_due = |server: &RankedServer| server.retry_at.is_none_or(|at| at <= now);
        let due = self.0.iter_mut().filter(is_left).find(|server| is_due(server));
        if let Some(server) = due {
            server.begin_retry(now);
            return Some(server.address);
        }
        self.0.iter().map(|server| server.address).find(|address| !tried.contains(address))
    }

    /// Returns whether queries to a server have an OPT record.
    pub fn has_edns(&self, now: Instant, address: SocketAddr) -> bool {
        let server = self.0.iter().find(|server| server.address == address);
        server.and_then(|server| server.plain_until).is_none_or(|until| until <= now)
    }

    /// Notes that a server answers a question only without an OPT record (RFC 6891 §7).
    pub fn on_edns_rejected(&mut self, now: Instant, address: SocketAddr) {
        if let Some(server) = self.find(address) {
            server.plain_until = Some(now + PLAIN_HOLD);
        }
    }

    /// Notes an answer of a server.
    pub fn on_answer(&mut self, address: SocketAddr) {
        if let Some(server) = self.find(address) {
            (server.failures, server.retry_at, server.backoff) = (0, None, RETRY_MIN);
        }
    }

    /// Notes that a server has not answered in time, or cannot be reached.
    pub fn on_failure(&mut self, now: Instant, address: SocketAddr) {
        if let Some(server) = self.find(address) {
            server.failures = server.failures.saturating_add(1);
            if server.failures >= FAILURES_MAX && server.retry_at.is_none() {
                server.retry_at = Some(now + server.backoff);
            }
        }
    }

    fn find(&mut self, address: SocketAddr) -> Option<&mut RankedServer> {
        self.0.iter_mut().find(|server| server.address == address)
    }
}

impl RankedServer {
    /// Sets the time of the next retry of a failed server, as if this one failed, too.
    fn begin_retry(&mut self, now: Instant) {
        if self.retry_at.is_some() {
            self.backoff = (self.backoff * 2).min(RETRY_MAX);
            self.retry_at = Some(now + self.backoff);
        }
    }
}
