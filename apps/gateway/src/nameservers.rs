//! Nameservers that the DNS forwarder queries: their addresses, order and availability.
//!
//! A thread reads resolv.conf, because opening it may block (network file system, sleeping disk)
//! and must not delay connections. The thread checks the file only after a query, so that an idle
//! host stays idle. The query does not wait for the check and starts with the known nameservers. If
//! the file has changed, [`crate::dns::Forwarder`] sends the query to the new nameservers.

mod resolv_conf;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use towpath_shm::Fd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::events::{Events, Interest, Token};
use crate::limits::{
    NAMESERVER_SILENT_NS, NAMESERVERS_MAX, RESOLV_CONF_LEN_MAX, RESOLV_CONF_LOOK_NS,
};

pub(crate) use resolv_conf::PORT;
use resolv_conf::ResolvConf;

/// Source of the nameservers that answer the program's queries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nameserver {
    /// Nameservers in the host's /etc/resolv.conf, see resolv.conf(5). Changes of the file are
    /// detected.
    OfHost,
    /// Nameservers in this file, which has the format of resolv.conf(5).
    ListedIn(PathBuf),
    /// Nameservers at these addresses, in order of preference. At most three are used.
    At(Vec<SocketAddr>),
}

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Nameservers known to one gateway, with their state.
#[derive(Debug)]
pub(crate) struct Nameservers {
    conf: ResolvConf,
    /// For each nameserver, the time in ns until which it is tried after all others, because it
    /// timed out.
    silent_until_ns: [u64; NAMESERVERS_MAX],
    /// Index of the nameserver to which the next query is sent first, if the option `rotate` is
    /// set.
    begin: usize,
    file: Option<Follower>,
}

/// Order in which one query or connection tries the nameservers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerRotation {
    order: [Option<SocketAddr>; NAMESERVERS_MAX],
    len: usize,
    attempts: usize,
    /// Number of attempts so far. If a nameserver was tried twice, both attempts count.
    steps: usize,
}

/// Access of one gateway to the thread that reads resolv.conf.
#[derive(Debug)]
struct Follower {
    /// Channel that requests a check of resolv.conf. Its capacity is one, because a second pending
    /// request would only read the same file again.
    look: SyncSender<()>,
    changed: Receiver<ResolvConf>,
    looked_ns: Option<u64>,
}

impl Nameservers {
    /// Creates the nameservers for several gateways, which poll the epoll sets `events`. A single
    /// thread reads the file for all gateways.
    ///
    /// # Errors
    /// Returns an error if no descriptor or thread can be created.
    pub(crate) fn for_all(which: &Nameserver, events: &[Events]) -> io::Result<Vec<Self>> {
        let file = match which {
            Nameserver::OfHost => Path::new(RESOLV_CONF),
            Nameserver::ListedIn(file) => file,
            Nameserver::At(nameservers) => {
                let conf = ResolvConf::of(nameservers.clone());
                return Ok(events.iter().map(|_| Self::of(conf.clone())).collect());
            }
        };
        let conf = read(file);
        let followers = Follower::start(file, &conf, events)?;
        let known = |file| Self { file: Some(file), ..Self::of(conf.clone()) };
        Ok(followers.into_iter().map(known).collect())
    }

    fn of(conf: ResolvConf) -> Self {
        Self { conf, silent_until_ns: [0; NAMESERVERS_MAX], begin: 0, file: None }
    }

    /// Returns the time in ns to wait for the answer of a nameserver.
    pub(crate) fn timeout_ns(&self) -> u64 {
        self.conf.timeout_s * 1_000_000_000
    }

    /// Returns whether `nameserver` is in the configured list.
    pub(crate) fn has(&self, nameserver: SocketAddr) -> bool {
        self.conf.nameservers.contains(&nameserver)
    }

    /// Returns the order in which the nameservers are tried for a new query: the order in
    /// resolv.conf, but nameservers that timed out come last. If a dead nameserver were first, the
    /// program's own timeout would end before the second nameserver is tried.
    pub(crate) fn rotation(&mut self, now_ns: u64) -> ServerRotation {
        if let Some(file) = &mut self.file {
            file.look(now_ns);
        }
        let count = self.conf.nameservers.len();
        let begin = self.begin;
        if self.conf.rotate {
            self.begin = (begin + 1) % count.max(1);
        }
        let mut tour = ServerRotation {
            order: [None; NAMESERVERS_MAX],
            len: 0,
            attempts: self.conf.attempts,
            steps: 0,
        };
        for silent in [false, true] {
            for n in (0..count).map(|n| (begin + n) % count) {
                if (self.silent_until_ns[n] > now_ns) == silent {
                    tour.order[tour.len] = Some(self.conf.nameservers[n]);
                    tour.len += 1;
                }
            }
        }
        tour
    }

    /// Marks a nameserver that timed out, so that it is tried last.
    pub(crate) fn on_silence(&mut self, now_ns: u64, nameserver: SocketAddr) {
        self.set_silent(nameserver, now_ns.saturating_add(NAMESERVER_SILENT_NS));
    }

    /// Marks a nameserver as available, because it answered.
    pub(crate) fn on_answer(&mut self, nameserver: SocketAddr) {
        self.set_silent(nameserver, 0);
    }

    fn set_silent(&mut self, nameserver: SocketAddr, until_ns: u64) {
        let found = self.conf.nameservers.iter().position(|known| *known == nameserver);
        if let Some(silent) = found.and_then(|n| self.silent_until_ns.get_mut(n)) {
            *silent = until_ns;
        }
    }

    /// Applies changes of resolv.conf that the thread has sent. Returns whether nameservers or
    /// options have changed.
    pub(crate) fn refresh(&mut self) -> bool {
        let Some(conf) = self.file.as_ref().and_then(|file| file.changed.try_iter().last()) else {
            return false;
        };
        *self = Self { file: self.file.take(), ..Self::of(conf) };
        true
    }
}

impl ServerRotation {
    /// Returns the nameserver that is currently tried.
    pub(crate) fn current(&self) -> Option<SocketAddr> {
        let step = self.steps.checked_sub(1)?;
        *self.order.get(step % self.len.max(1))?
    }

    /// Advances to the next nameserver, and returns it. If no attempts are left, returns `None` and
    /// keeps the current nameserver.
    pub(crate) fn advance(&mut self) -> Option<SocketAddr> {
        if !self.goes_on() {
            return None;
        }
        self.steps += 1;
        self.current()
    }

    /// Returns the order for a TCP connection, in which each nameserver is tried only once. The
    /// last one gets the kernel's full connect timeout.
    pub(crate) fn once(self) -> Self {
        Self { attempts: 1, ..self }
    }

    /// Returns whether another attempt at a nameserver is left.
    pub(crate) fn goes_on(&self) -> bool {
        self.steps < self.len * self.attempts
    }

    /// Returns whether all nameservers have been tried the same number of times.
    pub(crate) fn is_round(&self) -> bool {
        self.steps.is_multiple_of(self.len.max(1))
    }
}

impl Follower {
    /// Starts the thread that reads resolv.conf, and returns a handle for each gateway.
    fn start(file: &Path, known: &ResolvConf, events: &[Events]) -> io::Result<Vec<Self>> {
        let (look, asked) = sync_channel(1);
        let (mut readers, mut followers) = (Vec::new(), Vec::new());
        for events in events {
            let bell = Fd::from(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            events.watch(&bell, Token::Nameservers, Interest::Readable)?;
            let (tell, changed) = channel();
            readers.push(NameserverReader { tell, bell });
            followers.push(Self { look: look.clone(), changed, looked_ns: None });
        }
        let (file, known) = (file.to_owned(), known.clone());
        std::thread::Builder::new()
            .name("towpath-resolv".into())
            .spawn(move || follow(&file, known, &asked, &readers))?;
        Ok(followers)
    }

    /// Requests a check of resolv.conf unless one was requested recently.
    fn look(&mut self, now_ns: u64) {
        let due = |looked: u64| now_ns.saturating_sub(looked) >= RESOLV_CONF_LOOK_NS;
        if self.looked_ns.is_none_or(due) {
            self.looked_ns = Some(now_ns);
            // Ignore errors: if the channel is full, a check is already requested.
            let _ = self.look.try_send(());
        }
    }
}

/// Channel and eventfd by which the thread that reads resolv.conf sends changes to one gateway.
struct NameserverReader {
    tell: Sender<ResolvConf>,
    /// Eventfd that is signalled after a new configuration was sent. Owned by the thread, so that
    /// it stays open while the thread may signal it.
    bell: Fd,
}

/// Main function of the thread: reads the file on request, and sends changes to all gateways. Ends
/// after the last gateway was dropped.
///
/// Opens the path again each time, because the file is often a symlink, and is replaced rather than
/// written.
fn follow(file: &Path, mut known: ResolvConf, asked: &Receiver<()>, readers: &[NameserverReader]) {
    while asked.recv().is_ok() {
        let now = read(file);
        if now != known {
            known = now;
            for NameserverReader { tell, bell } in readers {
                // Ignore errors of the channel: the gateway may have ended. Ignore errors of the
                // write: it fails only if the counter is at its maximum, and the eventfd is then
                // readable already.
                let _ = tell.send(known.clone());
                let _ = rustix::io::write(bell.as_fd(), &1u64.to_ne_bytes());
            }
        }
    }
}

/// Reads a file in resolv.conf format. An unreadable file is treated as empty.
///
/// Does not use std or libc, because our stack may intercept their calls, and show a file that
/// names this gateway as the nameserver.
fn read(file: &Path) -> ResolvConf {
    let mut text = Vec::new();
    // Ignore errors: bytes that were read before an error are used.
    let _ = read_to(&mut text, file);
    ResolvConf::parse(&String::from_utf8_lossy(&text))
}

fn read_to(text: &mut Vec<u8>, file: &Path) -> Result<(), Errno> {
    let file = Fd::from(open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
    let mut part = [0; 4096];
    while text.len() < RESOLV_CONF_LEN_MAX {
        match rustix::io::read(&*file, &mut part) {
            Ok(0) => break,
            Ok(len) => text.extend_from_slice(&part[..len]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    text.truncate(RESOLV_CONF_LEN_MAX);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn nameservers(text: &str) -> Nameservers {
        Nameservers::of(ResolvConf::parse(text))
    }

    /// Returns the last byte of each nameserver's address, in the order of a query.
    fn order(nameservers: &mut Nameservers, now_ns: u64) -> Vec<u8> {
        let mut tour = nameservers.rotation(now_ns);
        let last = |addr: SocketAddr| match addr.ip() {
            std::net::IpAddr::V4(ip) => ip.octets()[3],
            std::net::IpAddr::V6(ip) => ip.octets()[15],
        };
        std::iter::from_fn(|| tour.advance().map(last)).collect()
    }

    const THREE: &str = "nameserver 192.0.2.1\nnameserver 2001:db8::2\nnameserver 192.0.2.3\n";

    #[test]
    fn all_are_asked_as_often_as_the_file_says() {
        assert_eq!(order(&mut nameservers(THREE), 0), [1, 2, 3, 1, 2, 3]);
        let three = format!("{THREE}options attempts:1\n");
        assert_eq!(order(&mut nameservers(&three), 0), [1, 2, 3]);
        assert_eq!(order(&mut nameservers("nameserver 192.0.2.1\n"), 0), [1, 1]);
        assert_eq!(order(&mut Nameservers::of(ResolvConf::of(Vec::new())), 0), []);
    }

    #[test]
    fn questions_go_round_if_the_file_says_so() {
        let mut three = nameservers(&format!("{THREE}options rotate attempts:1\n"));
        let orders: Vec<_> = (0..4).map(|_| order(&mut three, 0)).collect();
        assert_eq!(orders, [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]);
    }

    #[test]
    fn one_that_said_nothing_is_asked_last_for_a_while() {
        let mut three = nameservers(&format!("{THREE}options attempts:1\n"));
        let now = 100 * SECOND;
        let (first, second) = (three.conf.nameservers[0], three.conf.nameservers[1]);
        three.on_silence(now, first);
        assert_eq!(order(&mut three, now), [2, 3, 1]);
        three.on_silence(now, second);
        assert_eq!(order(&mut three, now), [3, 1, 2]);
        three.on_answer(second);
        assert_eq!(order(&mut three, now), [2, 3, 1]);
        assert_eq!(order(&mut three, now + NAMESERVER_SILENT_NS), [1, 2, 3]);
    }
}
