//! A program's stack joined to a gateway, turned in real time on the test's thread.
#![allow(dead_code)] // Each test file uses its part.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant as Clock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_gateway::{Forward, ForwardProtocol, Gateway, GatewayConfig, Joint, Outer};
use towpath_link::{Cable, CableConfig, CableEnd, Dice};
use towpath_pool::{Batch, Checksum, LinkType, Offloads, Pool, Port};

use towpath_ring::{HeapRecv, HeapSend, Payload, RecvBuffer};
use towpath_shm::Fragments;
use towpath_stack::net::{IfaceId, InterfaceConfig};
use towpath_stack::{
    BindOptions, Budget, ChildElsewhere, DatagramMeta, DatagramOut, Elsewhere, Family, Host,
    Linger, Owners, SocketError, SocketEvent, SocketId, SocketKind, Stack, StackConfig,
};
use towpath_tcp::Instant;
use towpath_wire::{MacAddr, Prefix};

/// Maximum duration of every wait, after which the test panics with the awaited condition.
pub const PATIENCE: Duration = Duration::from_secs(50);

/// Clock of a world, or of all shards of a host. At most `STEP_MAX` passes between two reads.
/// Otherwise, timers of a test that was not scheduled for a while would expire before it has read
/// packets.
struct Time {
    looked: Cell<Clock>,
    passed: Cell<Duration>,
}

/// Maximum step of the clock: four times the sleep of a world.
const STEP_MAX: Duration = Duration::from_millis(20);

impl Time {
    fn new() -> Self {
        Self { looked: Cell::new(Clock::now()), passed: Cell::default() }
    }

    fn passed(&self) -> Duration {
        let now = Clock::now();
        let step = now.duration_since(self.looked.replace(now)).min(STEP_MAX);
        self.passed.set(self.passed.get() + step);
        self.passed.get()
    }
}

/// State of the program's sockets, by user number.
#[derive(Default)]
pub struct Program {
    pub events: HashMap<u32, Vec<SocketEvent>>,
    pub accepted: VecDeque<(u32, SocketId, SocketAddr)>,
    pub datagrams: VecDeque<(u32, SocketAddr, Vec<u8>)>,
    /// Metadata of the received datagrams, in order of arrival.
    pub metas: Vec<DatagramMeta>,
    next_user: u32,
    /// Connections that shards have handed over to listeners of other shards, by user number. All
    /// shards share one table.
    children: Rc<RefCell<HashMap<u32, SocketId>>>,
}

const FIFO: u32 = 1 << 20;

impl Host for Program {
    type Recv = HeapRecv;
    type Send = HeapSend;

    fn recv_room(&self, _: u32) -> u32 {
        FIFO
    }

    fn accept(
        &mut self,
        _: u32,
        child: SocketId,
        _: SocketAddr,
        remote: SocketAddr,
    ) -> Option<(u32, HeapRecv, HeapSend)> {
        self.next_user += 1;
        self.accepted.push_back((self.next_user, child, remote));
        Some((self.next_user, HeapRecv::new(FIFO, FIFO), HeapSend::new(FIFO, FIFO)))
    }

    fn accept_for(
        &mut self,
        _: &Elsewhere,
        child: SocketId,
        _: SocketAddr,
        _: SocketAddr,
    ) -> Option<ChildElsewhere<HeapRecv, HeapSend>> {
        self.next_user += 1;
        self.children.borrow_mut().insert(self.next_user, child);
        let (recv, send) = (HeapRecv::new(FIFO, FIFO), HeapSend::new(FIFO, FIFO));
        Some(ChildElsewhere { user: self.next_user, tag: 0, recv, send, waits: false })
    }

    fn enqueue(
        &mut self,
        _: u32,
        (child, _): (u32, u32),
        _: SocketAddr,
        remote: SocketAddr,
    ) -> bool {
        let Some(id) = self.children.borrow_mut().remove(&child) else { return false };
        self.accepted.push_back((child, id, remote));
        true
    }

    fn datagram(&mut self, user: u32, meta: &DatagramMeta, payload: &Payload<'_>) -> bool {
        let mut bytes = vec![0; payload.len() as usize];
        payload.copy_to(0, &mut bytes);
        self.datagrams.push_back((user, meta.remote, bytes));
        self.metas.push(*meta);
        true
    }

    fn event(&mut self, user: u32, event: SocketEvent) {
        self.events.entry(user).or_default().push(event);
    }
}

/// A socket of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sock {
    pub id: SocketId,
    pub user: u32,
}

/// Port of the gateway, to which the test keeps access.
struct Shared {
    gateway: Rc<RefCell<Gateway>>,
    wake: OwnedFd,
}

impl Port for Shared {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        self.gateway.borrow_mut().poll(now_ns, pool, out, max)
    }
    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.gateway.borrow_mut().submit(now_ns, pool, batch)
    }
    fn offloads(&self) -> Offloads {
        self.gateway.borrow().offloads()
    }
    fn link_type(&self) -> LinkType {
        LinkType::Ip
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }
    fn looked(&mut self, ready: bool) {
        self.gateway.borrow_mut().looked(ready);
    }
    fn next_timeout_ns(&self) -> Option<u64> {
        self.gateway.borrow().next_timeout_ns()
    }
    fn undelivered(&self) -> u64 {
        self.gateway.borrow().undelivered()
    }
}

/// Type of the link between the program's stack and the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// In-memory link, on which packets need no checksums or segmentation.
    Memory,
    /// Device that carries IP packets with complete checksums, at most as long as the MTU.
    Ip,
    /// Device that carries Ethernet frames.
    Ethernet,
}

/// Creates a cable without delay, whose ends have no offloads.
fn cable(link_type: LinkType) -> Cable {
    let cable = Cable::new(CableConfig { link_type, ..CableConfig::default() }, Dice::new(1, 0));
    cable.observe(|_, packet| {
        assert!(packet.meta.segmentation.is_none(), "to be cut by a wire");
        assert!(!matches!(packet.meta.checksum, Checksum::Partial { .. }), "without a checksum");
    });
    cable
}

/// The program's end of a cable, and the gateway at the other end.
struct Wired {
    end: CableEnd,
    joint: Joint<Shared, CableEnd>,
    wake: OwnedFd,
}

impl Port for Wired {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        if max == 0 {
            return 0;
        }
        self.joint.turn(now_ns);
        self.end.poll(now_ns, pool, out, max)
    }
    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = self.end.submit(now_ns, pool, batch);
        // Let the gateway process the packets within the program's turn, as over the in-memory
        // link.
        if n > 0 {
            self.joint.turn(now_ns);
        }
        n
    }
    fn offloads(&self) -> Offloads {
        self.end.offloads()
    }
    fn link_type(&self) -> LinkType {
        self.end.link_type()
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }
    fn looked(&mut self, ready: bool) {
        self.joint.gateway().looked(ready);
    }
    fn next_timeout_ns(&self) -> Option<u64> {
        self.end.next_timeout_ns().into_iter().chain(self.joint.next_timeout_ns()).min()
    }
}

const MAC_PROGRAM: MacAddr = MacAddr([2, 0, 0, 0, 0, 15]);
const MAC_GATEWAY: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// Distance between the first user numbers of two shards.
pub const USERS_OF_A_SHARD: u32 = 1_000_000;
/// Number of stack turns per turn of a world. On Ethernet, resolving a neighbour and sending takes
/// several.
pub const TURNS: u64 = if matches!(crate::OVER, Over::Ethernet) { 4 } else { 1 };
/// Time at which the world begins.
const START: Instant = Instant(1);

pub struct World {
    pub stack: Stack<Program>,
    pub program: Program,
    pub gateway: Rc<RefCell<Gateway>>,
    pub pool: Pool,
    ports: [Box<dyn Port>; 1],
    time: Rc<Time>,
    skipped: Duration,
    /// Time of the program and the gateway while it is stopped; `None` while it passes.
    stopped: Option<Instant>,
}

pub fn gateway_v4(port: u16) -> SocketAddr {
    format!("10.0.2.2:{port}").parse().unwrap()
}

pub fn gateway_v6(port: u16) -> SocketAddr {
    format!("[fd00:2::2]:{port}").parse().unwrap()
}

impl World {
    pub fn new() -> Self {
        Self::with(GatewayConfig { seed: [7; 32], ..GatewayConfig::default() })
    }

    pub fn with(config: GatewayConfig) -> Self {
        let stack = Stack::new(StackConfig::default(), [9; 32], START);
        let link = match crate::OVER {
            Over::Memory => None,
            Over::Ip => Some(LinkType::Ip),
            Over::Ethernet => Some(LinkType::Ethernet),
        };
        let mut world = match link {
            None => Self::join(stack, Gateway::new(config.clone(), START.0).unwrap()),
            Some(link) => Self::wire(stack, &config, link),
        };
        world.add_interface(&config);
        if crate::OVER == Over::Ethernet {
            world.detect_duplicates();
        }
        world
    }

    /// Skips the program's duplicate address detection (RFC 4862 section 5.4): at most a second
    /// before the probe, and a second after it.
    fn detect_duplicates(&mut self) {
        for _ in 0..3 {
            self.skipped += Duration::from_secs(1);
            self.turn();
        }
    }

    /// Creates a world for each shard of a host.
    pub fn shards(count: usize) -> Vec<Self> {
        let config = GatewayConfig { seed: [7; 32], ..GatewayConfig::default() };
        let seed = [9; 32];
        let stacks = Stack::shards(StackConfig::default(), seed, START, count);
        let gateways = Gateway::shards(&config, Owners::new(&seed, count), START.0).unwrap();
        let mut worlds: Vec<_> = stacks
            .into_iter()
            .zip(gateways)
            .map(|(stack, gateway)| Self::join(stack, gateway))
            .collect();
        worlds[0].add_interface(&config);
        let children = Rc::clone(&worlds[0].program.children);
        let time = Rc::clone(&worlds[0].time);
        for (world, n) in worlds.iter_mut().zip(0..) {
            world.program.children = Rc::clone(&children);
            world.program.next_user = n * USERS_OF_A_SHARD;
            world.time = Rc::clone(&time);
        }
        worlds
    }

    /// Creates a world with the stack and the gateway at the two ends of a cable.
    fn wire(stack: Stack<Program>, config: &GatewayConfig, link: LinkType) -> Self {
        let [end, there] = cable(link).ends();
        let outer = Outer::device(&there, MAC_GATEWAY);
        let mut world = Self::join(stack, Gateway::on(outer, config, START.0).unwrap());
        let wake = || world.gateway.borrow().wake_fd().unwrap().try_clone_to_owned().unwrap();
        let shared = Shared { gateway: Rc::clone(&world.gateway), wake: wake() };
        let joint = Joint::new(shared, Box::new(there));
        world.ports = [Box::new(Wired { end, joint, wake: wake() })];
        world
    }

    /// Creates the world of a shard and its gateway.
    fn join(stack: Stack<Program>, gateway: Gateway) -> Self {
        let wake = gateway.wake_fd().unwrap().try_clone_to_owned().unwrap();
        let gateway = Rc::new(RefCell::new(gateway));
        let port: Box<dyn Port> = Box::new(Shared { gateway: gateway.clone(), wake });
        Self {
            stack,
            program: Program::default(),
            gateway,
            pool: Pool::default(),
            ports: [port],
            time: Rc::new(Time::new()),
            skipped: Duration::ZERO,
            stopped: None,
        }
    }

    /// Adds the host's interface through its first shard.
    fn add_interface(&mut self, config: &GatewayConfig) {
        let own = [config.program_v4.map(IpAddr::V4), config.program_v6.map(IpAddr::V6)];
        let routers = [config.gateway_v4.map(IpAddr::V4), config.gateway_v6.map(IpAddr::V6)];
        let link = self.ports[0].link_type();
        let on_ethernet = link == LinkType::Ethernet;
        let prefix = |ip: IpAddr| match (on_ethernet, ip) {
            (false, _) => Prefix::host(ip),
            (true, IpAddr::V4(_)) => Prefix::new(ip, 24).unwrap(),
            (true, IpAddr::V6(_)) => Prefix::new(ip, 64).unwrap(),
        };
        let iface = self.stack.net.add_interface(
            START,
            InterfaceConfig {
                name: "gw0".into(),
                link,
                mac: MAC_PROGRAM,
                mtu: config.mtu,
                offloads: self.ports[0].offloads(),
                addresses: own.into_iter().flatten().map(prefix).collect(),
                slaac: false,
                any_address: false,
                kernel_cuts: false,
                in_process: crate::OVER == Over::Memory,
            },
        );
        assert_eq!(iface, IfaceId(1));
        for (everything, router) in [Prefix::ALL_V4, Prefix::ALL_V6].into_iter().zip(routers) {
            self.stack.net.add_route(everything, router.filter(|_| on_ethernet), iface, 0);
        }
    }

    pub fn now(&self) -> Instant {
        let passed = || self.time.passed() + self.skipped;
        self.stopped.unwrap_or_else(|| Instant(1 + passed().as_nanos() as u64))
    }

    /// Stops the time of the program and the gateway, or lets it pass again. The test's real
    /// duration then has no effect.
    pub fn stop_time(&mut self, yes: bool) {
        self.stopped = yes.then(|| self.now());
    }

    /// Advances the stopped time.
    pub fn advance(&mut self, time: Duration) {
        self.stopped = self.stopped.map(|now| now + time);
    }

    /// Advances the time of the program and the gateway, but not that of the host.
    pub fn skip(&mut self, time: Duration) {
        self.skipped += time;
        self.run_for(Duration::from_millis(10));
    }

    /// Same as [`World::skip`], without a turn.
    pub fn skip_unseen(&mut self, time: Duration) {
        self.skipped += time;
    }

    pub fn forward(&mut self, host: &str, port: u16, protocol: ForwardProtocol) -> SocketAddr {
        let forward = Forward { host: host.parse().unwrap(), port, protocol };
        self.gateway.borrow_mut().listen(&[forward]).unwrap()[0]
    }

    pub fn counter(&self, name: &str) -> u64 {
        let gateway = self.gateway.borrow();
        gateway.counters().iter().find(|(n, _)| *n == name).unwrap().1
    }

    /// Turns the stack [`TURNS`] times.
    pub fn turn(&mut self) {
        for _ in 0..TURNS {
            self.turn_within(Budget::default());
        }
    }

    /// Turns without receiving: the program's stack takes no packets, and the gateway polls no host
    /// sockets.
    pub fn turn_without_receiving(&mut self) {
        self.turn_within(Budget { rx_packets: 0, ..Budget::default() });
    }

    fn turn_within(&mut self, budget: Budget) {
        let now = self.now();
        self.stack.turn(now, &mut self.program, &mut self.ports, &mut self.pool, budget);
    }

    /// Turns and sleeps, as an engine does, until `done` returns a value.
    pub fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut World) -> Option<T>) -> T {
        let deadline = Clock::now() + PATIENCE;
        loop {
            self.turn();
            if let Some(value) = done(self) {
                return value;
            }
            assert!(
                Clock::now() < deadline,
                "waited too long for {what}: {:?}, packets lost: {:?}",
                self.gateway.borrow().counters(),
                self.lost()
            );
            self.sleep(Duration::from_millis(5));
        }
    }

    /// Returns the dropped packets by reason, of the program's stack and of the gateway's.
    fn lost(&self) -> [Vec<(&'static str, u64)>; 2] {
        let gateway = self.gateway.borrow();
        [self.stack.net.counters(), gateway.inner().net.counters()]
            .map(|net| net.data.drops.iter().filter(|(_, count)| *count > 0).collect())
    }

    /// Turns for `time`, at least `TURNS_MIN` times.
    pub fn run_for(&mut self, time: Duration) {
        const TURNS_MIN: u32 = 8;
        let deadline = Clock::now() + time;
        let mut turns = 0;
        while turns < TURNS_MIN || Clock::now() < deadline {
            self.turn();
            turns += 1;
            self.sleep(Duration::from_millis(5).min(time / TURNS_MIN));
        }
    }

    fn sleep(&mut self, most: Duration) {
        let now = self.now().0;
        let stack = self.stack.next_timeout().map(|at| at.0);
        let port = self.ports[0].next_timeout_ns();
        let due = stack.into_iter().chain(port).min().unwrap_or(u64::MAX);
        let wait = Duration::from_nanos(due.saturating_sub(now)).min(most);
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as i64 };
        let mut fds = [PollFd::from_borrowed_fd(self.ports[0].wake_fd().unwrap(), PollFlags::IN)];
        if let Ok(ready) = poll(&mut fds, Some(&wait)) {
            self.ports[0].looked(ready > 0);
        }
    }

    pub fn user(&mut self) -> u32 {
        self.program.next_user += 1;
        self.program.next_user
    }

    /// Begins to connect.
    pub fn connect(&mut self, to: SocketAddr) -> Sock {
        let user = self.user();
        let family = if to.is_ipv4() { Family::V4 } else { Family::V6 };
        let id = self.stack.open(SocketKind::Stream, family, user).unwrap();
        let (recv, send) = (HeapRecv::new(FIFO, FIFO), HeapSend::new(FIFO, FIFO));
        let now = self.now();
        self.stack.connect(now, id, to, recv, send).unwrap();
        Sock { id, user }
    }

    /// Connects.
    pub fn connected(&mut self, to: SocketAddr) -> Sock {
        let sock = self.connect(to);
        self.until("connect", |world| world.happened(sock, SocketEvent::Connected).then_some(()));
        sock
    }

    pub fn listen(&mut self, addr: &str) -> Sock {
        let addr: SocketAddr = addr.parse().unwrap();
        let user = self.user();
        let family = if addr.is_ipv4() { Family::V4 } else { Family::V6 };
        let id = self.stack.open(SocketKind::Stream, family, user).unwrap();
        let options = BindOptions { v6_only: true, ..BindOptions::default() };
        self.stack.bind(id, addr, options).unwrap();
        self.stack.listen(id, 512).unwrap();
        Sock { id, user }
    }

    pub fn accept(&mut self, listener: Sock) -> (Sock, SocketAddr) {
        self.until("accept", |world| {
            let (user, id, remote) = world.program.accepted.pop_front()?;
            world.stack.accepted(listener.id);
            Some((Sock { id, user }, remote))
        })
    }

    pub fn datagram_socket(&mut self, bind: &str) -> Sock {
        let addr: SocketAddr = bind.parse().unwrap();
        let user = self.user();
        let family = if addr.is_ipv4() { Family::V4 } else { Family::V6 };
        let id = self.stack.open(SocketKind::Datagram, family, user).unwrap();
        self.stack.bind(id, addr, BindOptions::default()).unwrap();
        Sock { id, user }
    }

    pub fn send_to(&mut self, sock: Sock, to: SocketAddr, bytes: &[u8], segment_size: Option<u16>) {
        let out = DatagramOut { remote: Some(to), segment_size, ..DatagramOut::default() };
        let payload = Payload::new(bytes, Fragments::empty());
        let now = self.now();
        self.stack.send_datagram(now, sock.id, &out, &payload, &mut self.pool).unwrap();
    }

    pub fn happened(&self, sock: Sock, event: SocketEvent) -> bool {
        self.program.events.get(&sock.user).is_some_and(|events| events.contains(&event))
    }

    pub fn error(&self, sock: Sock) -> Option<SocketError> {
        self.program.events.get(&sock.user)?.iter().find_map(|event| match event {
            SocketEvent::Error(error) => Some(*error),
            _ => None,
        })
    }

    /// Writes as many bytes as there is room for, and returns their number.
    pub fn write(&mut self, sock: Sock, bytes: &[u8]) -> usize {
        let Some(send) = self.stack.send_buffer(sock.id) else { return 0 };
        let n = send.write(&Payload::new(bytes, Fragments::empty()));
        if n > 0 {
            self.stack.send_ready(sock.id);
        }
        n as usize
    }

    pub fn unread(&mut self, sock: Sock) -> u32 {
        self.stack.recv_buffer(sock.id).map_or(0, |recv| recv.unread())
    }

    /// Reads all available bytes.
    pub fn read(&mut self, sock: Sock) -> Vec<u8> {
        let now = self.now();
        let Some(recv) = self.stack.recv_buffer(sock.id) else { return Vec::new() };
        let fragments = recv.peek();
        let mut bytes = vec![0; fragments.len() as usize];
        fragments.copy_to(0, &mut bytes);
        recv.consume(bytes.len() as u32);
        if !bytes.is_empty() {
            self.stack.recv_taken(now, sock.id);
        }
        bytes
    }

    /// Reads exactly `n` bytes.
    pub fn read_exact(&mut self, sock: Sock, n: usize) -> Vec<u8> {
        let mut all = Vec::new();
        self.until("bytes", |world| {
            all.extend(world.read(sock));
            (all.len() >= n).then_some(())
        });
        assert_eq!(all.len(), n);
        all
    }

    /// Writes all bytes.
    pub fn write_all(&mut self, sock: Sock, bytes: &[u8]) {
        let mut done = 0;
        self.until("room", |world| {
            done += world.write(sock, &bytes[done..]);
            (done == bytes.len()).then_some(())
        });
    }

    /// Reads to the end of the stream.
    pub fn read_to_end(&mut self, sock: Sock) -> Vec<u8> {
        let mut all = Vec::new();
        self.until("the end", |world| {
            all.extend(world.read(sock));
            let ended = world.happened(sock, SocketEvent::PeerClosed);
            (ended && world.unread(sock) == 0).then_some(())
        });
        all
    }

    pub fn close(&mut self, sock: Sock, linger: Linger) {
        let now = self.now();
        self.stack.close(now, sock.id, linger);
    }
}

/// Reserves a port of this host that refuses connections. While the socket exists, no program can
/// listen on the port.
pub fn refusing() -> (OwnedFd, u16) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    let bound = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    (socket, bound.port())
}

/// Runs `test` on a thread in its own network namespace, in which this host has the address
/// 192.0.2.1. Skips the test without root.
#[allow(clippy::print_stderr)] // For whoever reads the output of the tests.
pub fn in_namespace(test: impl FnOnce() + Send + 'static) {
    on_thread(|| match enter_namespace() {
        true => test(),
        false => eprintln!("left out: needs root"),
    });
}

/// Runs a test that needs fixed port numbers in its own network namespace. Without root, the host's
/// namespace is used, in which another program may have the ports.
pub fn among_free_ports(test: impl FnOnce() + Send + 'static) {
    on_thread(|| {
        enter_namespace();
        test();
    });
}

fn on_thread(test: impl FnOnce() + Send + 'static) {
    if let Err(panic) = thread::spawn(test).join() {
        std::panic::resume_unwind(panic);
    }
}

fn enter_namespace() -> bool {
    // SAFETY: unshare(2) has no memory arguments; it affects only this thread and threads started
    // by it.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return false;
    }
    for arguments in ["link set lo up", "addr add 192.0.2.1/32 dev lo"] {
        let status = std::process::Command::new("ip").args(arguments.split(' ')).status();
        assert!(status.expect("iproute2").success(), "ip {arguments}");
    }
    true
}

/// Returns `n` pseudorandom bytes, so that misplaced bytes are detected.
pub fn pattern(n: usize, seed: u32) -> Vec<u8> {
    let mut dice = Dice::new(seed.into(), 0);
    (0..n).map(|_| dice.next_u32() as u8).collect()
}

/// FNV-1a, continued from `sum`.
pub fn fnv(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
