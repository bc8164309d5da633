//! Programs that use an engine over loopback, through real control sockets and channels.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::program::{self, PATIENCE, Program, Running, eventually};
use towpath_engine::EngineConfig;
use towpath_ring::{Waiter, lock_tx, program_fifo};
use towpath_shm::control::{Interface, Request, SOCKETS_MAX, TOKENS_MAX, call, purpose};
use towpath_shm::futex::Woken;
use towpath_shm::layout::{LOCK_CHANNEL_SHIFT, Plain, RawAddr, event, flags, op, setting, shut};

const ECONNRESET: i32 = 104;
const ECONNREFUSED: i32 = 111;
const EADDRINUSE: i32 = 98;
const EINVAL: i32 = 22;

fn engine() -> Running {
    Running::start(EngineConfig::default())
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) + seed + (i >> 8)) as u8).collect()
}

/// Returns a listener, and client and server of a connection to it.
fn pair(program: &Program) -> (program::Handle, program::Handle, program::Handle) {
    let (listener, addr) = program.listen("127.0.0.1:0");
    let client = program.connect(addr);
    let server = program.accept(listener);
    (listener, client, server)
}

#[test]
fn bytes_go_both_ways_and_everything_is_freed() {
    let engine = engine();
    let program = engine.program();
    let (listener, client, server) = pair(&program);
    let slot = program.slot(server);
    assert_eq!(slot.state.load(Ordering::Acquire), 1);
    assert_eq!(slot.remote.load(), program.slot(client).local.load());
    assert_eq!(slot.local.load(), program.slot(client).remote.load());

    let data = pattern(1, 12 << 20);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| program.send(client, &data));
        assert!(program.recv(server, data.len()) == data);
    });
    println!("12 MiB in {:?}", start.elapsed());
    program.send(server, b"thanks");
    assert_eq!(program.recv(client, 6), b"thanks");

    program.command(op::SHUTDOWN, client, shut::WRITE);
    program.recv_end(server);
    program.send(server, b"last words");
    program.close(server);
    assert_eq!(program.recv(client, 10), b"last words");
    program.recv_end(client);
    program.close(client);
    program.close(listener);
    engine.wait_for("sockets", 0);
    engine.wait_for("windows_assigned", 0);
}

#[test]
fn a_killed_process_leaves_nothing_behind() {
    let engine = engine();
    let (a, b) = (engine.program(), engine.program());
    let (listener, addr) = a.listen("127.0.0.1:0");
    let client = b.connect(addr);
    let server = a.accept(listener);
    let unread = b.connect(addr);
    let with_unread = a.accept(listener);
    let _never_accepted = b.connect(addr);
    a.send(with_unread, b"not read by b");
    eventually("the bytes' arrival", || {
        (b.try_recv(unread, 0).is_some() || b.slot(unread).rx_tail.load(Ordering::Acquire) == 13)
            .then_some(())
    });
    b.send(client, b"written before the end");
    drop(b);
    assert_eq!(a.recv(server, 22), b"written before the end");
    // As in the kernel, a killed process's connection ends with FIN, or with RST if bytes are
    // unread.
    a.recv_end(server);
    assert_eq!(a.error(with_unread), ECONNRESET);
    drop(a);
    engine.wait_for("sockets", 0);
    assert_eq!(engine.counter("channels"), 0);
}

#[test]
fn a_connection_nobody_accepted_is_reset_with_its_listener() {
    let engine = engine();
    let (a, b) = (engine.program(), engine.program());
    let (listener, addr) = a.listen("127.0.0.1:0");
    let client = b.connect(addr);
    a.close(listener);
    assert_eq!(b.error(client), ECONNRESET);
    b.close(client);
    engine.wait_for("sockets", 0);
}

#[test]
fn a_connection_popped_and_never_claimed_is_reset() {
    let engine = engine();
    let (a, b) = (engine.program(), engine.program());
    let (listener, addr) = a.listen("127.0.0.1:0");
    let worker = a.fork();
    let client = b.connect(addr);
    // The time to claim starts when the worker ends, even if the engine has slept before.
    std::thread::sleep(Duration::from_millis(700));
    worker.pop_record(listener);
    let begin = Instant::now();
    drop(worker);
    assert_eq!(b.error(client), ECONNRESET);
    // The engine reads its clock once per turn, so the measured time may be shorter than one
    // second. After the sleep, at most 300 ms remain.
    assert!(begin.elapsed() >= Duration::from_millis(700), "{:?}", begin.elapsed());
    assert_eq!(engine.counter("unclaimed"), 1);
    // The listener still accepts connections for other processes.
    let client = b.connect(addr);
    let server = a.accept(listener);
    a.send(server, b"hello");
    assert_eq!(b.recv(client, 5), b"hello");
}

#[test]
fn sockets_are_shared_with_a_fork() {
    let engine = engine();
    let parent = engine.program();
    let (listener, client, server) = pair(&parent);
    let child = parent.fork();
    parent.close(server);
    child.send(server, b"from the child");
    assert_eq!(parent.recv(client, 14), b"from the child");
    // The child can accept from the shared listener, too.
    let addr = parent.slot(listener).local.load().to_socket_addr().unwrap();
    let second = parent.connect(addr);
    let accepted = child.accept(listener);
    child.send(accepted, b"x");
    assert_eq!(parent.recv(second, 1), b"x");
    drop(child);
    parent.recv_end(client);
    parent.recv_end(second);
}

/// A process is killed after it has written to shared memory and before it sends the command for
/// that.
#[test]
fn what_a_killed_process_did_not_tell_is_noticed() {
    let engine = engine();
    let parent = engine.program();
    let (_, client, server) = pair(&parent);
    let slot = parent.slot(server);

    // publish has set the flag that a command was sent, so other holders will not send one.
    let child = parent.fork();
    {
        let _guard = lock_tx(slot, server.generation, || true);
        assert_eq!(program_fifo::write(&parent.region, slot, 0, b"from the dead"), 13);
        assert!(program_fifo::publish(slot, 13));
    }
    drop(child);
    assert_eq!(parent.recv(client, 13), b"from the dead");
}

/// A thread is inside a send while another thread of its process closes the shared socket. Then the
/// process is killed.
#[test]
fn a_lock_is_freed_of_a_process_that_has_closed_the_socket() {
    let engine = engine();
    let parent = engine.program();
    let (_, client, server) = pair(&parent);
    let slot = parent.slot(server);
    let child = parent.fork();
    const CHILD: u32 = 2 << LOCK_CHANNEL_SHIFT | 5;
    slot.tx_lock.store(CHILD, Ordering::Relaxed);
    child.close(server);
    // The engine handles earlier commands before this request.
    child.call(&Request { call: call::INTERFACES, ..Request::default() }).unwrap();
    assert_eq!(slot.tx_lock.load(Ordering::Relaxed), CHILD);
    drop(child);
    eventually("the lock", || (slot.tx_lock.load(Ordering::Relaxed) == 0).then_some(()));
    parent.send(server, b"x");
    assert_eq!(parent.recv(client, 1), b"x");
}

#[test]
fn what_lies_in_a_message_outlives_its_sender() {
    let engine = engine();
    let (sender, receiver) = (engine.program(), engine.program());
    let (listener, addr) = receiver.listen("127.0.0.1:0");
    let sent = sender.connect(addr);
    let server = receiver.accept(listener);
    let slot = receiver.slot(sent);
    slot.in_flight.store(1, Ordering::Relaxed);
    drop(sender);
    engine.wait_for("channels", 1);
    receiver.call(&receiver.about(call::ADOPT, sent)).unwrap();
    slot.in_flight.store(0, Ordering::Relaxed);
    receiver.send(sent, b"still here");
    assert_eq!(receiver.recv(server, 10), b"still here");
    // After its adoption, the socket ends when its last holder closes it.
    receiver.close(sent);
    receiver.recv_end(server);

    // No process is left that could receive the sockets, so they end at once.
    receiver.slot(server).in_flight.store(1, Ordering::Relaxed);
    receiver.slot(listener).in_flight.store(1, Ordering::Relaxed);
    drop(receiver);
    engine.wait_for("sockets", 0);
}

/// A program of another run may receive a descriptor. In that run, the slot belongs to another
/// socket.
#[test]
fn a_token_says_of_which_run_it_is() {
    let engines = [engine(), engine()];
    let names = engines.each_ref().map(|engine| {
        let program = engine.program();
        let socket = program.socket(6);
        let name = || towpath_shm::token::read(program.tokens(&[socket]).1[0].as_fd());
        let again = name();
        assert_eq!(name(), again);
        again.expect("a name")
    });
    assert_ne!(names[0], names[1]);
}

/// A request names up to [`TOKENS_MAX`] sockets, so a program that inherits more sends several.
#[test]
fn one_request_names_many_sockets() {
    let engine = engine();
    let (program, other) = (engine.program(), engine.program());
    let mut wanted: Vec<program::Handle> = (0..TOKENS_MAX).map(|_| program.socket(6)).collect();
    // A socket that has ended, and a socket of another process.
    program.close(wanted[3]);
    wanted[5] = other.socket(6);
    let (reply, tokens) = program.tokens(&wanted);
    let expected = ((1u32 << TOKENS_MAX) - 1) & !(1 << 3) & !(1 << 5);
    assert_eq!((reply.errno, reply.a, reply.b), (0, TOKENS_MAX as u32, expected));
    assert_eq!(tokens.len(), TOKENS_MAX - 2);
    let named = (0..TOKENS_MAX).filter(|n| expected >> n & 1 == 1).map(|n| wanted[n]);
    for (handle, token) in named.zip(&tokens) {
        let name = towpath_shm::token::read(token.as_fd()).expect("a name");
        assert_eq!((name.slot, name.generation), (handle.slot, handle.generation));
    }
    // A request handles at most [`TOKENS_MAX`] sockets.
    wanted.push(program.socket(6));
    let (reply, tokens) = program.tokens(&wanted);
    assert_eq!((reply.a, tokens.len()), (TOKENS_MAX as u32, TOKENS_MAX - 2));
    assert_eq!(program.tokens(&[]).0.errno, EINVAL);
}

#[test]
fn exec_keeps_what_it_lists() {
    let engine = engine();
    let program = engine.program();
    let (listener, client, server) = pair(&program);
    let Program { control, .. } = program;
    let program = Program::hello(control, &[client, listener]);
    program.recv_end(client);
    assert_eq!(program.call(&program.about(call::LISTEN, server)).unwrap_err(), 9);
    assert!(program.call(&Request { a: 5, ..program.about(call::LISTEN, listener) }).is_ok());
}

#[test]
fn refusals_are_told_and_a_socket_may_try_again() {
    let engine = engine();
    let program = engine.program();
    let (listener, addr) = program.listen("127.0.0.1:0");
    program.close(listener);
    eventually("the listener's end", || (engine.counter("sockets") == 0).then_some(()));
    let client = program.socket(6);
    program.command_b(op::SETTING, client, setting::NODELAY, 1);
    program.start_connect(client, addr).unwrap();
    assert_eq!(program.error(client), ECONNREFUSED);
    assert_ne!(program.slot(client).flags.load(Ordering::Acquire) & flags::DEAD, 0);
    let other = program.socket(6);
    program.bind(other, &addr.to_string()).unwrap();
    assert_eq!(program.bind(program.socket(6), &addr.to_string()), Err(EADDRINUSE));
    program.call(&Request { a: 1, ..program.about(call::LISTEN, other) }).unwrap();
    program.start_connect(client, addr).unwrap();
    let server = program.accept(other);
    program.send(client, b"at last");
    assert_eq!(program.recv(server, 7), b"at last");
}

/// As on Linux, a connect over loopback is answered after the handshake, or after it has found the
/// queue full. The engine may read several connects in one turn.
#[test]
fn a_full_accept_queue_is_full_for_the_next_connect() {
    let engine = engine();
    let server = engine.program();
    let programs: Vec<_> = (0..4).map(|_| engine.program()).collect();
    for _ in 0..20 {
        let listener = server.socket(6);
        let addr = server.bind(listener, "127.0.0.1:0").unwrap();
        server.call(&server.about(call::LISTEN, listener)).unwrap();
        let clients: Vec<_> = programs.iter().map(|program| (program, program.socket(6))).collect();
        for &(program, client) in &clients {
            let connect = program.about(call::CONNECT, client);
            program.begin_call(&Request { addr: RawAddr::new(addr), ..connect });
        }
        for (program, _) in &clients {
            assert!(program.end_call().is_ok());
        }
        let connected = |&&(program, client): &&(&Program, program::Handle)| {
            program.slot(client).flags.load(Ordering::Acquire) & flags::CONNECTED != 0
        };
        assert_eq!(clients.iter().filter(connected).count(), 1);
        clients.iter().for_each(|(program, client)| program.close(*client));
        server.close(listener);
    }
}

/// Two threads use one socket: one calls listen while the other calls connect.
#[test]
fn a_listener_that_is_asked_to_connect_goes_on_listening() {
    const EISCONN: i32 = 106;
    let engine = engine();
    let program = engine.program();
    let (listener, addr) = program.listen("127.0.0.1:0");
    let mut clients = vec![program.connect(addr)];
    program.accept(listener);
    clients.push(program.connect(addr));
    assert_eq!(program.start_connect(listener, addr), Err(EISCONN));
    program.accept(listener);
    clients.push(program.connect(addr));
    let server = program.accept(listener);
    program.send(clients[2], b"heard");
    assert_eq!(program.recv(server, 5), b"heard");
    assert_eq!(engine.counter("hostile_sockets"), 0);
}

#[test]
fn datagrams_come_whole_and_tell_who_sent_them() {
    let engine = engine();
    let (a, b) = (engine.program(), engine.program());
    let server = a.socket(17);
    let addr = a.bind(server, "127.0.0.1:0").unwrap();
    let client = b.socket(17);
    for len in [0, 1, 1000, 9000, 60_000] {
        let data = pattern(len, len);
        b.send_to(client, Some(addr), &data);
        let (from, got) = a.recv_from(server);
        assert!(got == data);
        assert_eq!(
            from,
            eventually("a local address", || b
                .slot(client)
                .local
                .load()
                .to_socket_addr()
                .map(|local| { std::net::SocketAddr::new(from.ip(), local.port()) }))
        );
        a.send_to(server, Some(from), &data[..len / 2]);
        assert!(b.recv_from(client).1 == data[..len / 2]);
    }
    b.start_connect(client, addr).unwrap();
    for n in 0..5000u32 {
        b.send_to(client, None, &n.to_ne_bytes());
        assert_eq!(a.recv_from(server).1, n.to_ne_bytes());
    }
    a.close(server);
    eventually("the server's end", || (engine.counter("sockets") == 1).then_some(()));
    b.send_to(client, None, b"anybody?");
    assert_eq!(b.error(client), ECONNREFUSED);
}

#[test]
fn options_and_interfaces() {
    let engine = engine();
    let program = engine.program();
    let (_, client, _) = pair(&program);
    let get = |level, option| {
        let reply = program.call(&Request {
            a: level,
            b: option,
            ..program.about(call::GET_OPTION, client)
        });
        reply.map(|reply| reply.payload().to_vec())
    };
    let info = get(6, 11).unwrap();
    assert_eq!(info.len(), 280);
    assert_eq!(info[0], 1);
    let mss = u32::from_ne_bytes(info[16..20].try_into().unwrap());
    assert!(mss > 1000, "{mss}");
    assert_eq!(get(6, 2).unwrap(), mss.to_ne_bytes());
    assert_eq!(get(6, 13).unwrap(), b"cubic\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(get(0, 14).unwrap(), 65535u32.to_ne_bytes());
    assert_eq!(get(6, 999), Err(92));
    let set = |name: &[u8]| {
        let mut request = Request {
            a: 6,
            b: 13,
            len: name.len() as u32,
            ..program.about(call::SET_OPTION, client)
        };
        request.data[..name.len()].copy_from_slice(name);
        program.call(&request).map(drop)
    };
    set(b"reno").unwrap();
    assert_eq!(get(6, 13).unwrap(), b"reno\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(set(b"none such"), Err(2));

    let reply = program.call(&Request { call: call::INTERFACES, ..Request::default() }).unwrap();
    let lo = Interface::from_bytes(reply.payload());
    assert_eq!(
        (&lo.name[..3], lo.index, lo.addr.to_socket_addr()),
        (&b"lo\0"[..], 1, "127.0.0.1:0".parse().ok())
    );
    let reply = program.call(&Request { call: call::SOCKETS, ..Request::default() }).unwrap();
    let text = String::from_utf8(reply.payload().to_vec()).unwrap();
    assert!(text.lines().any(|line| line.contains("\"LISTEN\"")), "{text}");
    let list = engine.remote.sockets().unwrap();
    assert_eq!(list.len(), 3);
    assert!(list.iter().all(|socket| socket.pids == [std::process::id()]));
}

/// A server such as nginx that runs in the background is the child of a process that has ended.
#[test]
fn a_child_of_fork_is_shown_as_itself() {
    let engine = engine();
    let program = engine.program();
    let own = std::process::id();
    let (listener, _) = program.listen("127.0.0.1:0");
    let holders = || engine.remote.sockets().unwrap().remove(0).pids;
    let shown = |wanted: &[u32]| eventually("the holders", || (holders() == wanted).then_some(()));
    let child = program.fork();
    assert_eq!(holders(), [own], "nobody knows which process the child will be");
    let settle = |child: &Program, pid| {
        child.command(op::LIST, listener, 0);
        child.command(op::SETTLED, listener, pid);
    };
    settle(&child, own + 1);
    shown(&[own, own + 1]);
    drop(program);
    shown(&[own + 1]);
    let grandchild = child.fork();
    settle(&grandchild, own + 2);
    drop(child);
    shown(&[own + 2]);
    // exec keeps the process ID.
    grandchild.command(op::LIST, listener, 0);
    let exec = Request { call: call::CLONE, a: purpose::EXEC, ..Request::default() };
    let _image = grandchild.call_for_first(&exec).unwrap();
    drop(grandchild);
    shown(&[own + 2]);
}

#[test]
fn a_set_buffer_size_holds() {
    let engine = engine();
    let program = engine.program();
    let (listener, addr) = program.listen("127.0.0.1:0");
    program.command_b(op::SETTING, listener, setting::RCVBUF, 10_000);
    let client = program.socket(6);
    program.command_b(op::SETTING, client, setting::SNDBUF, 20_000);
    program.start_connect(client, addr).unwrap();
    let server = program.accept(listener);
    program.wait(client, "connect", |slot| {
        (slot.flags.load(Ordering::Acquire) & flags::CONNECTED != 0).then_some(())
    });
    assert_eq!(program.slot(client).tx_limit.load(Ordering::Acquire), 40_000);
    let mut sent = 0;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        sent += program.try_send(client, &[0; 1000]);
    }
    assert!(sent <= 60_000, "{sent}");
    assert_eq!(program.recv(server, sent).len(), sent);
}

#[test]
fn idle_memory_comes_back_when_it_is_short() {
    let engine = Running::start(EngineConfig { memory_cap: 256 << 10, ..EngineConfig::default() });
    let program = engine.program();
    let (listener, addr) = program.listen("127.0.0.1:0");
    for _ in 0..20 {
        let client = program.connect(addr);
        let server = program.accept(listener);
        program.send(client, &[1; 1000]);
        assert_eq!(program.recv(server, 1000), [1; 1000]);
        program.send(server, &[2; 1000]);
        assert_eq!(program.recv(client, 1000), [2; 1000]);
    }
    assert!(engine.counter("memory_touched") <= 256 << 10);
    assert!(engine.counter("starved") > 0);
}

#[test]
fn an_idle_engine_sleeps() {
    let engine = engine();
    let program = engine.program();
    let (_, client, server) = pair(&program);
    program.send(client, b"hello");
    program.recv(server, 5);
    program::wait_for_rest(&engine.remote, Duration::from_millis(1200), 20);
}

/// A thread that slept on a closed socket is scheduled only when the slot belongs to another
/// socket, on which another thread sleeps.
#[test]
fn a_late_sleeper_of_a_closed_socket_does_not_hide_the_next_ones() {
    let engine = engine();
    let program = engine.program();
    let closed = program.socket(17);
    let mut late = Waiter::new(program.slot(closed));
    program.close(closed);
    engine.wait_for("sockets", 0);
    let socket = program.socket(17);
    assert_eq!(socket.slot, closed.slot);
    let addr = program.bind(socket, "127.0.0.1:0").unwrap();
    let mut waiter = Waiter::new(program.slot(socket));
    assert_ne!(late.sleep(Some(PATIENCE)), Woken::TimedOut);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Let the other thread fall asleep. If the time is too short, the test covers less.
            std::thread::sleep(Duration::from_millis(50));
            program.send_to(program.socket(17), Some(addr), b"wake up");
        });
        assert_ne!(waiter.sleep(Some(PATIENCE)), Woken::TimedOut);
    });
}

/// A killed thread cannot clear the flag that it sleeps.
#[test]
fn a_thread_that_is_killed_in_its_sleep_is_woken_once() {
    let engine = engine();
    let program = engine.program();
    let socket = program.socket(17);
    let events = |n: u64| {
        let before = engine.counter("events");
        for told in 1..=n {
            program.command(op::SHUTDOWN, socket, shut::READ);
            engine.wait_for("events", before + told);
        }
    };
    let _killed = Waiter::new(program.slot(socket));
    let before = engine.counter("wakes");
    events(20);
    assert_eq!(engine.counter("wakes") - before, 1);
    // The next socket in the slot has no sleeping thread.
    let _killed = Waiter::new(program.slot(socket));
    program.close(socket);
    engine.wait_for("sockets", 0);
    let next = program.socket(17);
    assert_eq!(next.slot, socket.slot);
    assert_eq!(program.slot(next).asleep.load(Ordering::Relaxed), 0);
}

#[test]
fn a_sleeping_program_is_rung() {
    let engine = engine();
    let (a, b) = (engine.program(), engine.program());
    let (listener, addr) = a.listen("127.0.0.1:0");
    let client = b.connect(addr);
    let server = a.accept(listener);
    for round in 0..200u8 {
        while towpath_ring::pop_event(&b.channel).is_some() {}
        let asleep = towpath_ring::prepare_sleep(&b.channel);
        a.send(server, &[round]);
        if asleep {
            let mut fds = [rustix::event::PollFd::new(&b.bell, rustix::event::PollFlags::IN)];
            let patience =
                rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut fds, Some(&patience)), Ok(1));
            towpath_ring::notification::clear(std::os::fd::AsFd::as_fd(&b.bell));
        }
        let (slot, bits) = eventually("an event", || towpath_ring::pop_event(&b.channel));
        assert_eq!((slot, bits & event::RX), (client.slot, event::RX));
        assert_eq!(b.recv(client, 1), [round]);
    }
}

#[test]
fn the_engine_goes_with_its_last_program() {
    let mut engine =
        Running::start(EngineConfig { exit_when_unused: true, ..EngineConfig::default() });
    let program = engine.program();
    let (_, client, _) = pair(&program);
    let child = program.fork();
    drop(program);
    child.send(client, b"still here");
    drop(child);
    let report = engine.join();
    assert_eq!(program::counter(&report.counters, "attached"), 2);
    assert!(engine.remote.counters().is_err());
    assert!(engine.remote.attach().is_err());
}

#[test]
fn a_stopped_engine_hangs_up() {
    let engine = engine();
    let program = engine.program();
    let report = engine.stop();
    assert_eq!(program::counter(&report.counters, "channels"), 1);
    let mut byte = [0u8; 1];
    let received = rustix::net::recv(&program.control, &mut byte, rustix::net::RecvFlags::empty());
    assert_eq!(received.unwrap().1, 0);
}

#[test]
fn there_are_only_so_many_processes() {
    const EAGAIN: i32 = 11;
    let engine = Running::start(EngineConfig { channels_max: 3, ..EngineConfig::default() });
    let parent = engine.program();
    let (_, client, server) = pair(&parent);
    let children = [parent.fork(), parent.fork()];
    assert_eq!(parent.try_fork().err(), Some(EAGAIN));
    assert!(engine.remote.attach().is_err());
    assert_eq!(engine.counter("channels_refused"), 2);
    // Existing processes keep their sockets, and ended ones make room for others.
    children[0].send(server, b"unharmed");
    assert_eq!(parent.recv(client, 8), b"unharmed");
    drop(children);
    engine.wait_for("channels", 1);
    parent.fork();
}

/// All sockets that one request opens have the same properties, and each can be closed separately.
#[test]
fn sockets_come_several_at_once() {
    let engine = engine();
    let program = engine.program();
    let ask = |slot| {
        let request = Request { call: call::SOCKET, a: 2, b: 6, slot, ..Request::default() };
        let reply = program.call(&request).expect("there is room");
        let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().expect("four bytes"));
        let further = reply.payload().chunks_exact(8);
        let further: Vec<_> = further
            .map(|pair| program::Handle { slot: word(&pair[..4]), generation: word(&pair[4..]) })
            .collect();
        further
    };
    assert_eq!([0, 1].map(|wanted| ask(wanted).len()), [0, 0]);
    assert_eq!(ask(u32::MAX).len() + 1, SOCKETS_MAX);
    let further = ask(5);
    assert_eq!(further.len(), 4);
    for handle in further {
        program.bind(handle, "127.0.0.1:0").expect("it is a socket of this program");
    }
    engine.wait_for("sockets", 2 + SOCKETS_MAX as u64 + 5);
    drop(program);
    engine.wait_for("sockets", 0);
}
