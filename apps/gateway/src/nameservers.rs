//! Nameservers, their order, and knowledge about them.
//!
//! A thread reads the file that names them. Opening it may take long (a network file system, a disk
//! that sleeps), and no connection waits for it. The thread looks at it when a question is asked,
//! so that an idle host is left alone. The question itself does not wait: it begins with the known
//! nameservers. [`crate::dns::Forwarder`] turns it to another one when the file turns out to name
//! others.

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

/// Nameservers that answer the program's questions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nameserver {
    /// Nameservers that the host's /etc/resolv.conf names, as resolv.conf(5) says. Changes of the
    /// file are followed.
    OfHost,
    /// Nameservers that this file of the same form names.
    ListedIn(PathBuf),
    /// Nameservers at these addresses, the first one first; of more than three the others are not
    /// used.
    At(Vec<SocketAddr>),
}

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The nameservers as they are known now.
#[derive(Debug)]
pub(crate) struct Nameservers {
    conf: ResolvConf,
    /// For each: it said nothing for the whole timeout, and until then the others are asked first.
    silent_until_ns: [u64; NAMESERVERS_MAX],
    /// With `rotate`: where the next question begins.
    begin: usize,
    file: Option<Follower>,
}

/// The nameservers in the order in which one question, or one connection, tries them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerRotation {
    order: [Option<SocketAddr>; NAMESERVERS_MAX],
    len: usize,
    attempts: usize,
    /// Steps so far; each is one nameserver.
    steps: usize,
}

/// The gateway's end of the thread that reads the file.
#[derive(Debug)]
struct Follower {
    /// Room for one request: another one while the thread is at it would find the same.
    look: SyncSender<()>,
    changed: Receiver<ResolvConf>,
    looked_ns: Option<u64>,
}

impl Nameservers {
    /// The nameservers for each of several gateways, whose events these are. A single thread
    /// follows the file for all.
    ///
    /// # Errors
    /// When the host gives no descriptor or no thread.
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

    /// How long a nameserver is waited for.
    pub(crate) fn timeout_ns(&self) -> u64 {
        self.conf.timeout_s * 1_000_000_000
    }

    /// Whether this is one of them.
    pub(crate) fn has(&self, nameserver: SocketAddr) -> bool {
        self.conf.nameservers.contains(&nameserver)
    }

    /// The order for a question that comes now: as the file says, but nameservers that left an
    /// earlier question unanswered come last. The program has a timeout of its own, often the
    /// same one. With a dead nameserver first in the file, it would never get an answer of the
    /// others.
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

    /// A nameserver did not answer in time.
    pub(crate) fn on_silence(&mut self, now_ns: u64, nameserver: SocketAddr) {
        self.set_silent(nameserver, now_ns.saturating_add(NAMESERVER_SILENT_NS));
    }

    /// A nameserver answered.
    pub(crate) fn on_answer(&mut self, nameserver: SocketAddr) {
        self.set_silent(nameserver, 0);
    }

    fn set_silent(&mut self, nameserver: SocketAddr, until_ns: u64) {
        let found = self.conf.nameservers.iter().position(|known| *known == nameserver);
        if let Some(silent) = found.and_then(|n| self.silent_until_ns.get_mut(n)) {
            *silent = until_ns;
        }
    }

    /// Takes what the thread found. True: there are other nameservers now, or they are asked in
    /// another way.
    pub(crate) fn refresh(&mut self) -> bool {
        let Some(conf) = self.file.as_ref().and_then(|file| file.changed.try_iter().last()) else {
            return false;
        };
        *self = Self { file: self.file.take(), ..Self::of(conf) };
        true
    }
}

impl ServerRotation {
    /// The nameserver that is asked now.
    pub(crate) fn current(&self) -> Option<SocketAddr> {
        let step = self.steps.checked_sub(1)?;
        *self.order.get(step % self.len.max(1))?
    }

    /// Goes on to the next one; None: there is none, and the current one stays.
    pub(crate) fn advance(&mut self) -> Option<SocketAddr> {
        if !self.goes_on() {
            return None;
        }
        self.steps += 1;
        self.current()
    }

    /// The same, each nameserver once: for connections, which are waited for as long as it takes in
    /// the end.
    pub(crate) fn once(self) -> Self {
        Self { attempts: 1, ..self }
    }

    /// Whether [`ServerRotation::advance`] has another step.
    pub(crate) fn goes_on(&self) -> bool {
        self.steps < self.len * self.attempts
    }

    /// Whether each of them has been asked as often as the others.
    pub(crate) fn is_round(&self) -> bool {
        self.steps.is_multiple_of(self.len.max(1))
    }
}

impl Follower {
    /// For the gateways with these events.
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

    /// Has the file looked at, unless that was done just now.
    fn look(&mut self, now_ns: u64) {
        let due = |looked: u64| now_ns.saturating_sub(looked) >= RESOLV_CONF_LOOK_NS;
        if self.looked_ns.is_none_or(due) {
            self.looked_ns = Some(now_ns);
            // A full channel has a look that is still to come.
            let _ = self.look.try_send(());
        }
    }
}

/// How the thread tells a gateway.
struct NameserverReader {
    tell: Sender<ResolvConf>,
    /// Readable when there is something to hear. The thread has it as long as it may ring it.
    bell: Fd,
}

/// Body of the thread: reads the file when it is asked to, and tells of changes. The thread ends
/// with the last gateway.
///
/// The path is opened anew each time: the file is often a link, and replaced rather than written
/// to.
fn follow(file: &Path, mut known: ResolvConf, asked: &Receiver<()>, readers: &[NameserverReader]) {
    while asked.recv().is_ok() {
        let now = read(file);
        if now != known {
            known = now;
            for NameserverReader { tell, bell } in readers {
                // A gateway that has ended hears nothing. The write fails when the counter is full,
                // and then it is readable.
                let _ = tell.send(known.clone());
                let _ = rustix::io::write(bell.as_fd(), &1u64.to_ne_bytes());
            }
        }
    }
}

/// The content of the file; an unreadable file counts as an empty one.
///
/// std and libc are not used: the stack may serve this process's own socket calls. Then they show
/// the stack's nameserver in this file, which is this gateway.
fn read(file: &Path) -> ResolvConf {
    let mut text = Vec::new();
    // Bytes that were read before an error count.
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

    /// The last numbers of the addresses, in the order in which they are asked.
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
