//! A minimal program's side of the channel, as in the client library.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use towpath_engine::{Counters, Engine, EngineConfig, Remote, Report};
use towpath_pool::Port;
use towpath_ring::{
    Channel, Region, Rung, Status, Waiter, lock_rx, lock_tx, program_fifo, push_command,
    ring_engine,
};
use towpath_shm::control::{ControlReply, Request, TOKENS_MAX, call, goes_by_socket};
use towpath_shm::layout::{
    AcceptRecord, Command, DatagramHeader, Plain, RawAddr, Slot, VERSION, flags, op,
};

/// Maximum time of every wait, after which the test fails with a message. The tests do not judge
/// times: the test runner kills a test after a minute, without a message.
pub const PATIENCE: Duration = Duration::from_secs(50);

/// An engine that runs on its own thread.
pub struct Running {
    pub remote: Remote,
    thread: Option<JoinHandle<Report>>,
}

impl Running {
    pub fn start(config: EngineConfig) -> Self {
        Self::start_with(config, Vec::new)
    }

    pub fn start_with(
        config: EngineConfig,
        ports: impl FnOnce() -> Vec<Box<dyn Port + Send>> + Send + 'static,
    ) -> Self {
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let engine = Engine::new(config, ports(), [7; 32]).unwrap();
            sender.send(engine.remote()).unwrap();
            engine.run()
        });
        Self { remote: receiver.recv().unwrap(), thread: Some(thread) }
    }

    pub fn program(&self) -> Program {
        Program::hello(self.remote.attach().unwrap(), &[])
    }

    pub fn counter(&self, name: &str) -> u64 {
        counter(&self.remote.counters().unwrap(), name)
    }

    /// Waits until a counter has a value. On a timeout, fails with the values of all counters.
    pub fn wait_for(&self, name: &str, value: u64) {
        let start = Instant::now();
        while self.counter(name) != value {
            assert!(
                start.elapsed() < PATIENCE,
                "{name} is not {value}: {:?}\n{:#?}",
                self.remote.counters().unwrap(),
                self.remote.sockets().unwrap()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Fails if the engine does not answer within [`PATIENCE`], instead of waiting forever.
    pub fn lives(&self) {
        let (sender, receiver) = mpsc::channel();
        let remote = self.remote.clone();
        std::thread::spawn(move || sender.send(remote.counters().is_ok()));
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(true), "the engine is stuck");
    }

    pub fn stop(mut self) -> Report {
        self.remote.stop();
        self.join()
    }

    pub fn join(&mut self) -> Report {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.remote.stop();
    }
}

pub fn counter(counters: &Counters, name: &str) -> u64 {
    let all = [&counters.engine, &counters.sockets, &counters.net, &counters.drops];
    all.iter()
        .flat_map(|list| list.iter())
        .find(|(known, _)| *known == name)
        .map_or(0, |(_, count)| *count)
}

/// Repeats `attempt` until it returns a value.
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = attempt() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the engine makes at most `most` turns within `time`. An engine that never sleeps
/// makes some thousands, even on a busy machine.
pub fn wait_for_rest(remote: &Remote, time: Duration, most: u64) {
    let turns = || counter(&remote.counters().unwrap(), "turns");
    eventually("rest", || {
        let before = turns();
        std::thread::sleep(time);
        (turns() - before <= most).then_some(())
    });
}

/// A process, as the engine sees it: its control socket, memory and channel.
pub struct Program {
    pub control: OwnedFd,
    pub region: Region,
    pub status: Status,
    pub channel: Channel,
    pub engine_bell: OwnedFd,
    pub rung: Rung,
    pub bell: OwnedFd,
    /// Lock of the command ring, because only one thread at a time may push commands.
    commands: Mutex<()>,
    /// Number of the last request in the request slot.
    asked: Mutex<u32>,
}

/// A socket of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    pub slot: u32,
    pub generation: u32,
}

impl Program {
    pub fn hello(control: OwnedFd, held: &[Handle]) -> Self {
        let request = Request { a: std::process::id(), ..listing(call::HELLO, held) };
        let (reply, fds) = ask(&control, &request);
        assert_eq!((reply.errno, reply.a), (0, VERSION));
        let [region, status, channel, bell, _blank, engine_bell]: [OwnedFd; 6] =
            fds.try_into().unwrap();
        Self {
            control,
            region: Region::map(region).unwrap(),
            status: Status::map(status).unwrap(),
            channel: Channel::map(channel).unwrap(),
            engine_bell,
            rung: Rung::default(),
            bell,
            commands: Mutex::default(),
            asked: Mutex::default(),
        }
    }

    /// Creates a second process with the same sockets, as fork(2).
    pub fn fork(&self) -> Self {
        self.try_fork().unwrap()
    }

    pub fn try_fork(&self) -> Result<Self, i32> {
        let (reply, fds) = ask(&self.control, &Request { call: call::CLONE, ..Request::default() });
        if reply.errno != 0 {
            return Err(reply.errno);
        }
        let [control, channel, bell, engine_bell]: [OwnedFd; 4] = fds.try_into().unwrap();
        Ok(Self {
            control,
            region: self.region.clone(),
            status: self.status.clone(),
            channel: Channel::map(channel).unwrap(),
            engine_bell,
            rung: Rung::default(),
            bell,
            commands: Mutex::default(),
            asked: Mutex::default(),
        })
    }

    pub fn slot(&self, handle: Handle) -> &Slot {
        self.region.slot(handle.slot).unwrap()
    }

    pub fn call(&self, request: &Request) -> Result<ControlReply, i32> {
        if goes_by_socket(request.call) {
            let (reply, _) = ask(&self.control, request);
            return if reply.errno == 0 { Ok(reply) } else { Err(reply.errno) };
        }
        self.begin_call(request);
        self.end_call()
    }

    /// Sends a request. Returns the first descriptor of the reply, or `None` if it was refused.
    pub fn call_for_first(&self, request: &Request) -> Option<OwnedFd> {
        let (reply, fds) = ask(&self.control, request);
        fds.into_iter().next().filter(|_| reply.errno == 0)
    }

    /// Requests tokens with the names of sockets. Returns the reply and the tokens.
    pub fn tokens(&self, of: &[Handle]) -> (ControlReply, Vec<OwnedFd>) {
        ask(&self.control, &listing(call::TOKENS, of))
    }

    /// Sends a request without waiting for the reply, so that other processes can send theirs.
    pub fn begin_call(&self, request: &Request) {
        if goes_by_socket(request.call) {
            return tell(&self.control, request);
        }
        *self.asked.lock().unwrap() = towpath_ring::ask(&self.channel, request);
        self.ring_engine();
    }

    /// Waits for the reply to the last request.
    pub fn end_call(&self) -> Result<ControlReply, i32> {
        let number = *self.asked.lock().unwrap();
        let start = Instant::now();
        loop {
            let (word, expected) = towpath_ring::await_answer(&self.channel);
            match towpath_ring::answer_to(&self.channel, number) {
                Some(reply) if reply.errno == 0 => return Ok(reply),
                Some(reply) => return Err(reply.errno),
                None => {}
            }
            assert!(!towpath_ring::has_ended(&self.channel), "the engine hung up");
            assert!(start.elapsed() < PATIENCE, "there is no answer");
            towpath_shm::futex::wait(word, expected, Some(PATIENCE));
        }
    }

    pub fn about(&self, call: u32, handle: Handle) -> Request {
        Request { call, slot: handle.slot, generation: handle.generation, ..Request::default() }
    }

    pub fn socket(&self, protocol: u32) -> Handle {
        self.socket_of(2, protocol)
    }

    /// Opens an AF_INET6 socket.
    pub fn socket_v6(&self, protocol: u32) -> Handle {
        self.socket_of(10, protocol)
    }

    fn socket_of(&self, family: u32, protocol: u32) -> Handle {
        let request = Request { call: call::SOCKET, a: family, b: protocol, ..Request::default() };
        let reply = self.call(&request).unwrap();
        Handle { slot: reply.slot, generation: reply.generation }
    }

    pub fn bind(&self, handle: Handle, addr: &str) -> Result<SocketAddr, i32> {
        let addr = RawAddr::new(addr.parse().unwrap());
        self.call(&Request { addr, ..self.about(call::BIND, handle) })?;
        Ok(self.slot(handle).local.load().to_socket_addr().unwrap())
    }

    pub fn listen(&self, addr: &str) -> (Handle, SocketAddr) {
        let listener = self.socket(6);
        let local = self.bind(listener, addr).unwrap();
        self.call(&Request { a: 16, ..self.about(call::LISTEN, listener) }).unwrap();
        (listener, local)
    }

    pub fn start_connect(&self, handle: Handle, to: SocketAddr) -> Result<(), i32> {
        self.call(&Request { addr: RawAddr::new(to), ..self.about(call::CONNECT, handle) })
            .map(drop)
    }

    pub fn connect(&self, to: SocketAddr) -> Handle {
        let handle = self.socket(6);
        self.start_connect(handle, to).unwrap();
        self.wait(handle, "connect", |slot| {
            (slot.flags.load(Ordering::Acquire) & flags::CONNECTED != 0).then_some(())
        });
        handle
    }

    pub fn accept(&self, listener: Handle) -> Handle {
        let handle = self.pop_record(listener);
        self.command(op::ACCEPTED, handle, 0);
        handle
    }

    /// Removes a connection from the accept queue without claiming it.
    pub fn pop_record(&self, listener: Handle) -> Handle {
        let record = self.wait(listener, "accept", |slot| {
            let _guard = lock_rx(slot, listener.generation, || true);
            let mut bytes = [0; size_of::<AcceptRecord>()];
            let n = program_fifo::peek(&self.region, slot, 0, &mut bytes);
            (n == bytes.len()).then(|| {
                let _ = program_fifo::consume(slot, n as u32);
                AcceptRecord::from_bytes(&bytes)
            })
        });
        Handle { slot: record.slot, generation: record.generation }
    }

    pub fn command(&self, op: u32, handle: Handle, a: u32) {
        self.command_b(op, handle, a, 0);
    }

    pub fn command_b(&self, op: u32, handle: Handle, a: u32, b: u64) {
        let command = Command { op, slot: handle.slot, generation: handle.generation, a, b, c: 0 };
        eventually("a place in the ring", || {
            let _commands = self.commands.lock().unwrap();
            push_command(&self.channel, &command).ok()
        });
        self.ring_engine();
    }

    pub fn ring_engine(&self) {
        ring_engine(&self.status, &self.rung, self.engine_bell.as_fd());
    }

    pub fn close(&self, handle: Handle) {
        self.command(op::CLOSE, handle, 0);
    }

    /// Sleeps on the slot like a blocked thread, until `attempt` returns a value.
    pub fn wait<T>(
        &self,
        handle: Handle,
        what: &str,
        mut attempt: impl FnMut(&Slot) -> Option<T>,
    ) -> T {
        let slot = self.slot(handle);
        let start = Instant::now();
        let mut waiter = Waiter::new(slot);
        loop {
            if let Some(answer) = attempt(slot) {
                return answer;
            }
            let (flags, state) = (&slot.flags, &slot.state);
            assert!(
                start.elapsed() < PATIENCE,
                "{what} did not happen to {handle:?}: {flags:?}, {state:?}"
            );
            waiter.sleep(Some(PATIENCE));
        }
    }

    /// Queues as many bytes as fit, and returns their number.
    pub fn try_send(&self, handle: Handle, data: &[u8]) -> usize {
        let slot = self.slot(handle);
        let guard = lock_tx(slot, handle.generation, || true);
        let mut room = program_fifo::room(slot) as usize;
        if room == 0 && slot.tx_cap.load(Ordering::Acquire) != 0 {
            program_fifo::want_room(slot);
            room = program_fifo::room(slot) as usize;
        }
        let n = program_fifo::write(&self.region, slot, 0, &data[..data.len().min(room)]);
        let tell = n > 0 && program_fifo::publish(slot, n as u32);
        drop(guard);
        if tell {
            self.command(op::TX, handle, 0);
        }
        if slot.tx_cap.load(Ordering::Acquire) == 0 {
            self.command(op::TX_WINDOW, handle, 0);
        }
        n
    }

    pub fn send(&self, handle: Handle, mut data: &[u8]) {
        while !data.is_empty() {
            let n = self.wait(handle, "room to send", |_| match self.try_send(handle, data) {
                0 => None,
                n => Some(n),
            });
            data = &data[n..];
        }
    }

    /// Reads up to `max` bytes. Returns `None` if there are none yet, and an empty vector at the
    /// end.
    pub fn try_recv(&self, handle: Handle, max: usize) -> Option<Vec<u8>> {
        let slot = self.slot(handle);
        let ended = slot.flags.load(Ordering::Acquire) & (flags::RX_EOF | flags::DEAD) != 0;
        let guard = lock_rx(slot, handle.generation, || true);
        let mut bytes = vec![0; max];
        let n = program_fifo::peek(&self.region, slot, 0, &mut bytes);
        let tell = n > 0 && program_fifo::consume(slot, n as u32);
        drop(guard);
        if tell {
            self.command(op::RX_SPACE, handle, 0);
        }
        bytes.truncate(n);
        (n > 0 || ended).then_some(bytes)
    }

    pub fn recv(&self, handle: Handle, n: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < n {
            let more = self.wait(handle, "bytes", |_| self.try_recv(handle, n - all.len()));
            assert!(!more.is_empty(), "the stream ended after {} of {n} bytes", all.len());
            all.extend(more);
        }
        all
    }

    pub fn recv_end(&self, handle: Handle) {
        let rest = self.wait(handle, "the end", |_| self.try_recv(handle, 1));
        assert!(rest.is_empty());
    }

    /// Waits for the socket's pending error, and clears it.
    pub fn error(&self, handle: Handle) -> i32 {
        self.wait(handle, "an error", |slot| match slot.error.swap(0, Ordering::AcqRel) {
            0 => None,
            errno => Some(errno),
        })
    }

    pub fn send_to(&self, handle: Handle, to: Option<SocketAddr>, data: &[u8]) {
        let header = DatagramHeader {
            len: data.len() as u32,
            remote: to.map_or(RawAddr::default(), RawAddr::new),
            tos: 0xffff,
            ttl: 0xffff,
            ..DatagramHeader::default()
        };
        let slot = self.slot(handle);
        let padded = (size_of::<DatagramHeader>() + data.len()).next_multiple_of(8);
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(data);
        bytes.resize(padded, 0);
        self.wait(handle, "room for a datagram", |_| {
            let guard = lock_tx(slot, handle.generation, || true);
            program_fifo::want_room(slot);
            let fits = program_fifo::room(slot) as usize >= padded;
            if fits {
                assert_eq!(program_fifo::write(&self.region, slot, 0, &bytes), padded);
                if program_fifo::publish(slot, padded as u32) {
                    self.command(op::TX, handle, 0);
                }
            }
            drop(guard);
            if slot.tx_cap.load(Ordering::Acquire) == 0 {
                self.command(op::TX_WINDOW, handle, 0);
            }
            fits.then_some(())
        });
    }

    pub fn recv_from(&self, handle: Handle) -> (SocketAddr, Vec<u8>) {
        let (header, data) = self.recv_record(handle);
        (header.remote.to_socket_addr().unwrap(), data)
    }

    /// Receives the next datagram with its header.
    pub fn recv_record(&self, handle: Handle) -> (DatagramHeader, Vec<u8>) {
        const HEADER: usize = size_of::<DatagramHeader>();
        self.wait(handle, "a datagram", |slot| {
            let _guard = lock_rx(slot, handle.generation, || true);
            let mut bytes = [0; HEADER];
            if program_fifo::peek(&self.region, slot, 0, &mut bytes) < HEADER {
                return None;
            }
            let header = DatagramHeader::from_bytes(&bytes);
            let mut data = vec![0; header.len as usize];
            assert_eq!(
                program_fifo::peek(&self.region, slot, HEADER as u32, &mut data),
                data.len()
            );
            let _ = program_fifo::consume(slot, (HEADER + data.len()).next_multiple_of(8) as u32);
            Some((header, data))
        })
    }
}

/// Returns a request with a list of sockets.
fn listing(call: u32, sockets: &[Handle]) -> Request {
    let len = sockets.len() as u32 * 8;
    let mut request = Request { call, len, ..Request::default() };
    for (at, handle) in request.data.chunks_exact_mut(8).zip(sockets) {
        at[..4].copy_from_slice(&handle.slot.to_ne_bytes());
        at[4..].copy_from_slice(&handle.generation.to_ne_bytes());
    }
    request
}

fn ask(control: &OwnedFd, request: &Request) -> (ControlReply, Vec<OwnedFd>) {
    tell(control, request);
    answer(control)
}

fn tell(control: &OwnedFd, request: &Request) {
    send(control, request.wire(), SendFlags::NOSIGNAL).unwrap();
}

fn answer(control: &OwnedFd) -> (ControlReply, Vec<OwnedFd>) {
    let mut bytes = [0; size_of::<ControlReply>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TOKENS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg(control, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    assert_ne!(message.bytes, 0, "the engine hung up");
    let mut fds = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    (ControlReply::from_bytes(&bytes[..message.bytes]), fds)
}
