//! Ends of an engine whose last program has ended.

use std::os::fd::BorrowedFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use towpath_engine::{Engine, EngineConfig, Left};
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};
use towpath_stack::net::InterfaceConfig;
use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::{IpProtocol, MacAddr, ipv4};

use crate::options;
use crate::program::{PATIENCE, Program, Running, eventually};

/// A link that delivers the packets of programs slowly, and never delivers the last `stays` bytes.
struct Holding {
    since: Instant,
    /// Time of the last poll, on the engine's clock.
    looked_ns: u64,
    stays: u64,
}

const HELD: u64 = 20;
const A_BYTE: Duration = Duration::from_millis(30);

impl Port for Holding {
    fn poll(&mut self, now_ns: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
        self.looked_ns = now_ns;
        0
    }
    fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = batch.len();
        batch.drain(..).for_each(|packet| pool.give(packet));
        n
    }
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }
    fn link_type(&self) -> LinkType {
        LinkType::Ip
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn next_timeout_ns(&self) -> Option<u64> {
        // Like a device, it requests no turn when nothing is delivered.
        let moves = self.undelivered() > self.stays;
        moves.then_some(self.looked_ns + A_BYTE.as_nanos() as u64)
    }
    fn undelivered(&self) -> u64 {
        let delivered = self.since.elapsed().as_nanos() / A_BYTE.as_nanos();
        HELD.saturating_sub(delivered as u64).max(self.stays)
    }
}

fn holding(stays: u64) -> Vec<Box<dyn Port + Send>> {
    vec![Box::new(Holding { since: Instant::now(), looked_ns: 0, stays })]
}

fn config(leave_stalled: Duration) -> EngineConfig {
    let interfaces = vec![options::interface()];
    EngineConfig { exit_when_unused: true, leave_stalled, interfaces, ..EngineConfig::default() }
}

#[test]
fn it_stays_while_bytes_move() {
    let start = Instant::now();
    // Shorter than the delivery of all bytes, but longer than a slow machine may delay one byte.
    let mut engine = Running::start_with(config(A_BYTE * (HELD as u32 - 1)), || holding(0));
    drop(engine.program());
    engine.join();
    assert!(start.elapsed() >= A_BYTE * HELD as u32, "{:?}", start.elapsed());
}

#[test]
fn it_goes_when_nobody_takes_any_more() {
    const STALLED: Duration = Duration::from_millis(400);
    let mut engine = Running::start_with(config(STALLED), || holding(HELD));
    let program = engine.program();
    let left = engine.remote.left().unwrap();
    assert_eq!(left, Left { processes: 1, unsent: HELD });
    let start = Instant::now();
    drop(program);
    engine.join();
    // `STALLED` minus the age of the engine's clock, which is read once per turn.
    assert!(start.elapsed() >= STALLED / 2, "{:?}", start.elapsed());
}

/// Other processes and their streams do not delay the end, even if they continue to write.
#[test]
fn it_goes_with_its_host_whoever_else_is_there() {
    let (sender, receiver) = mpsc::channel();
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let engine = Engine::new(config(PATIENCE * 10), holding(HELD), [7; 32]);
        let mut engine = engine.expect("memory");
        let control = engine.attach_host().expect("a channel");
        sender.send((control, engine.remote())).expect("it is waited for");
        engine.run();
        done.send(())
    });
    let (control, remote) = receiver.recv().unwrap();
    let host = Program::hello(control, &[]);
    let _other = Program::hello(remote.attach().unwrap(), &[]);
    drop(Program::hello(remote.attach().unwrap(), &[]));
    assert!(ended.recv_timeout(Duration::from_millis(100)).is_err(), "it went before its host");
    drop(host);
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(()));
}

/// A link on which requests arrive from the addresses of hosts that do not exist.
struct Questions {
    asked: u8,
    next_ns: u64,
}

/// Interval between requests. Shorter than RESOLUTION_TIME, so that an answer always waits for a
/// neighbour.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(500);
const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

impl Questions {
    /// Returns a datagram to an unused port, each time from another address. The answer (port
    /// unreachable) waits for a neighbour that never replies.
    fn question(&self) -> Vec<u8> {
        let link = ethernet::Header {
            dst: OURS,
            src: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan: None,
            ethertype: EtherType::IPV4,
        };
        let header = ipv4::Header {
            tos: 0,
            total_len: 28,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: IpProtocol::UDP,
            src: [10, 0, 0, 10 + self.asked % 200].into(),
            dst: [10, 0, 0, 1].into(),
            options: ipv4::Options::EMPTY,
        };
        let mut bytes = vec![0; ethernet::HEADER_LEN + 28];
        link.emit(&mut bytes);
        header.emit(&mut bytes[ethernet::HEADER_LEN..]);
        // UDP header: ports 9 and 9, length 8, no checksum.
        bytes[ethernet::HEADER_LEN + 20..].copy_from_slice(&[0, 9, 0, 9, 0, 8, 0, 0]);
        bytes
    }
}

impl Port for Questions {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, _: usize) -> usize {
        if now_ns < self.next_ns {
            return 0;
        }
        self.next_ns = now_ns + BETWEEN_QUESTIONS.as_nanos() as u64;
        self.asked = self.asked.wrapping_add(1);
        let question = self.question();
        let mut packet = pool.take(question.len());
        packet.push_back(question.len()).unwrap().copy_from_slice(&question);
        out.push_back(packet);
        1
    }
    fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = batch.len();
        batch.drain(..).for_each(|packet| pool.give(packet));
        n
    }
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }
    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn next_timeout_ns(&self) -> Option<u64> {
        Some(self.next_ns)
    }
}

/// Answers to other hosts that wait for a neighbour do not delay the engine's end.
#[test]
fn it_goes_while_strangers_ask() {
    let interface = InterfaceConfig { link: LinkType::Ethernet, mac: OURS, ..options::interface() };
    let config = EngineConfig { interfaces: vec![interface], ..config(PATIENCE * 10) };
    let mut engine =
        Running::start_with(config, || vec![Box::new(Questions { asked: 0, next_ns: 0 })]);
    let program = engine.program();
    eventually("an answer waits", || (engine.remote.left().unwrap().unsent > 0).then_some(()));
    drop(program);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(engine.join()));
    assert!(receiver.recv_timeout(PATIENCE).is_ok(), "it stays");
}
