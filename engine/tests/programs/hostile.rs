//! Programs that write invalid data to shared memory. Only their own sockets may be harmed, not the
//! engine or other programs.

use std::sync::atomic::Ordering;

use crate::program::{self, Program, Running};
use towpath_dice::Dice;
use towpath_engine::EngineConfig;
use towpath_shm::control::{Request, call};
use towpath_shm::layout::{
    CHANNEL_LEN, COMMANDS_MAX, COMMANDS_OFFSET, Command, DatagramHeader, FIFO_OFFSET,
    LOCK_CHANNEL_SHIFT, LOCK_CONTENDED, LOCK_ENGINE, Plain, SLOTS_OFFSET, Slot, op,
};

const ECONNRESET: i32 = 104;

pub fn works(program: &Program) {
    let (listener, addr) = program.listen("127.0.0.1:0");
    let client = program.connect(addr);
    let server = program.accept(listener);
    program.send(client, b"still works");
    assert_eq!(program.recv(server, 11), b"still works");
    for handle in [listener, client, server] {
        program.close(handle);
    }
}

#[test]
fn an_impossible_ring_position_cuts_the_process_off() {
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.program(), engine.program());
    let handle = bad.socket(6);
    bad.channel.header().command_tail.store(COMMANDS_MAX * 3, Ordering::Release);
    towpath_ring::notification::ring(std::os::fd::AsFd::as_fd(&bad.engine_bell));
    engine.wait_for("hostile_channels", 1);
    engine.wait_for("sockets", 0);
    assert_eq!(bad.slot(handle).generation.load(Ordering::Acquire) % 2, 0);
    works(&good);
}

/// A process that shuts down its control socket is treated as ended. Otherwise its actual end would
/// be noticed late.
#[test]
fn a_process_that_shuts_its_control_socket_has_ended() {
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.program(), engine.program());
    for how in [rustix::net::Shutdown::Write, rustix::net::Shutdown::Both] {
        let other = bad.fork();
        other.socket(6);
        rustix::net::shutdown(&other.control, how).unwrap();
        engine.wait_for("channels", 2);
        engine.wait_for("sockets", 0);
    }
    assert_eq!(engine.counter("hostile_channels"), 0);
    works(&good);
}

#[test]
fn impossible_fifo_positions_reset_the_socket() {
    let engine = Running::start(EngineConfig::default());
    let program = engine.program();
    let (listener, addr) = program.listen("127.0.0.1:0");
    for (n, spoil) in
        [(|slot: &Slot| slot.rx_head.store(1 << 30, Ordering::Release)) as fn(&Slot), |slot| {
            slot.tx_tail.store(1 << 30, Ordering::Release)
        }]
        .into_iter()
        .enumerate()
    {
        let client = program.connect(addr);
        let server = program.accept(listener);
        program.send(client, b"to and");
        program.recv(server, 6);
        spoil(program.slot(server));
        program.command(op::TX, server, 0);
        program.command(op::RX_SPACE, server, 0);
        program.send(client, b"fro");
        engine.wait_for("hostile_sockets", n as u64 + 1);
        assert_eq!(program.error(client), ECONNRESET);
        assert_eq!(program.error(server), ECONNRESET);
    }
    works(&program);
}

#[test]
fn nonsense_datagrams_reset_the_socket() {
    let engine = Running::start(EngineConfig::default());
    let program = engine.program();
    for len in [u32::MAX, 65_536, 5000] {
        let before = engine.counter("hostile_sockets");
        let socket = program.socket(17);
        program.send_to(socket, Some("127.0.0.1:9".parse().unwrap()), b"good");
        let header = DatagramHeader { len, ..DatagramHeader::default() };
        let slot = program.slot(socket);
        let guard = towpath_ring::lock_tx(slot, socket.generation, || true);
        towpath_ring::program_fifo::write(&program.region, slot, 0, header.as_bytes());
        let _ = towpath_ring::program_fifo::publish(slot, size_of::<DatagramHeader>() as u32);
        drop(guard);
        program.command(op::TX, socket, 0);
        engine.wait_for("hostile_sockets", before + 1);
    }
    works(&program);
}

#[test]
fn requests_with_any_content_are_answered() {
    let engine = Running::start(EngineConfig::default());
    let program = engine.program();
    let mut dice = Dice::new(1, 0);
    let handles =
        [program.socket(6), program.socket(17), program.socket(1), program.listen("127.0.0.1:0").0];
    for _ in 0..20_000 {
        let handle = handles[dice.index(4)];
        let mut request = Request {
            call: dice.below(17) as u32,
            slot: handle.slot,
            generation: handle.generation,
            a: [0, 2, 6, 10, 41, dice.next_u64() as u32][dice.index(6)],
            b: dice.below(80) as u32,
            len: dice.below(40) as u32,
            ..Request::default()
        };
        request.addr.family = [0, 2, 10, 7][dice.index(4)];
        request.addr.port = dice.next_u64() as u16;
        request.addr.ip[0] = [0, 127, 224, 255][dice.index(4)];
        request.addr.ip[3] = dice.below(2) as u8;
        for byte in &mut request.data[..40] {
            *byte = [0, dice.next_u64() as u8][dice.index(2)];
        }
        // Skip HELLO and CLONE, which start another process image or process.
        if request.call != call::HELLO && request.call != call::CLONE {
            let _ = program.call(&request);
        }
    }
    drop(program);
    engine.wait_for("sockets", 0);
    works(&engine.program());
}

#[test]
fn random_bytes_in_shared_memory_harm_nobody_else() {
    let engine = Running::start(EngineConfig::default());
    let good = engine.program();
    for seed in 1..=12 {
        let bad = engine.program();
        let mut dice = Dice::new(seed, 0);
        scribble(&bad, &mut dice);
        // The bad program could also write to existing sockets of the good program, so the latter
        // opens new ones.
        engine.wait_for("hostile_channels", seed);
        drop(bad);
        engine.wait_for("sockets", 0);
        works(&good);
        engine.wait_for("sockets", 0);
    }
    let report = engine.stop();
    println!("{:?}", report.counters.engine);
    assert!(program::counter(&report.counters, "hostile_sockets") > 0);
}

/// Opens sockets of each kind. Then writes random values to their slots, FIFOs and rings, and sends
/// commands in between.
fn scribble(bad: &Program, dice: &mut Dice) {
    let (listener, addr) = bad.listen("127.0.0.1:0");
    let mut handles = vec![listener, bad.socket(17), bad.socket(6)];
    for _ in 0..4 {
        handles.push(bad.connect(addr));
        handles.push(bad.accept(listener));
    }
    for &handle in &handles[3..] {
        bad.try_send(handle, &[7; 3000]);
    }
    let (region, channel) = (bad.region.mapping(), bad.channel.mapping());
    for round in 0..4000 {
        let handle = handles[dice.index(handles.len())];
        let base = SLOTS_OFFSET + handle.slot as usize * size_of::<Slot>();
        // Write to any word of the slot except its locks, which would make this test wait.
        let word = dice.index(64);
        if !(37..=38).contains(&word) {
            let value = [dice.next_u64() as u32, dice.below(70_000) as u32][dice.index(2)];
            region.u32(base + word * 4).store(value, Ordering::Relaxed);
        }
        region
            .u64(FIFO_OFFSET + dice.below(1 << 16) as usize * 8)
            .store(dice.next_u64(), Ordering::Relaxed);
        let command = Command {
            op: dice.below(9) as u32,
            slot: handle.slot,
            generation: handle.generation,
            a: dice.below(24) as u32,
            b: [dice.next_u64(), dice.below(70_000)][dice.index(2)],
            c: dice.next_u64(),
        };
        if command.op != op::CLOSE || dice.below(50) == 0 {
            let _ = towpath_ring::push_command(&bad.channel, &command);
            bad.ring_engine();
        }
        // In the last rounds, write to the rings, too.
        if round > 3900 {
            let at = dice.below(CHANNEL_LEN as u64 / 8) as usize * 8;
            channel.u64(at).store(dice.next_u64(), Ordering::Relaxed);
            channel
                .u64(COMMANDS_OFFSET + dice.below(512) as usize * 8)
                .store(dice.next_u64(), Ordering::Relaxed);
        }
        if round == 3990 {
            bad.channel.header().event_head.store(dice.next_u64() as u32, Ordering::Release);
        }
    }
    bad.channel.header().command_tail.store(dice.next_u64() as u32, Ordering::Release);
    towpath_ring::notification::ring(std::os::fd::AsFd::as_fd(&bad.engine_bell));
}

/// `INSIDE_MAX` of engine/src/shard/sockets/reuse.rs.
const INSIDE_MAX: u64 = 1024;
/// Lock owner: a thread of the first program that attaches.
const FIRST: u32 = 1 << LOCK_CHANNEL_SHIFT | 5;

/// Closes a socket while its lock says that a thread is inside.
fn keep_back(program: &Program, owner: u32) {
    let handle = program.socket(17);
    program.slot(handle).rx_lock.store(owner, Ordering::Relaxed);
    program.close(handle);
}

/// A process that releases no locks keeps a bounded number of slots from reuse. The engine does not
/// poll these slots.
#[test]
fn who_gives_no_lock_back_keeps_a_bounded_number_of_slots_back() {
    let engine = Running::start(EngineConfig::default());
    let (bad, good) = (engine.program(), engine.program());
    (0..INSIDE_MAX).for_each(|_| keep_back(&bad, FIRST));
    engine.wait_for("slots_awaited", INSIDE_MAX);
    works(&good);
    // Each query takes a turn, and so does each sweep, once per second.
    program::wait_for_rest(&engine.remote, std::time::Duration::from_millis(300), 9);
    assert_eq!(engine.counter("locks_disbelieved"), 0);
    keep_back(&bad, FIRST);
    engine.wait_for("locks_disbelieved", 1);
    engine.wait_for("sockets", 0);
    assert_eq!(engine.counter("slots_awaited"), INSIDE_MAX);
    works(&good);
    drop(bad);
    engine.wait_for("slots_awaited", 0);
    assert_eq!((engine.counter("sockets"), engine.counter("channels")), (0, 1));
    works(&good);
}

/// A program that can write to a lock can forge any owner.
#[test]
fn locks_in_the_name_of_another_process_do_it_no_harm() {
    let engine = Running::start(EngineConfig::default());
    let (good, bad) = (engine.program(), engine.program());
    (0..=INSIDE_MAX).for_each(|_| keep_back(&bad, FIRST));
    engine.wait_for("sockets", 0);
    drop(bad);
    engine.wait_for("channels", 1);
    works(&good);
    assert_eq!(engine.counter("hostile_channels"), 0);
    drop(good);
    engine.wait_for("slots_awaited", 0);
}

#[test]
fn a_lock_of_a_process_that_never_was_keeps_nothing_back() {
    let engine = Running::start(EngineConfig::default());
    let program = engine.program();
    for word in [77 << LOCK_CHANNEL_SHIFT | 5, 5, LOCK_ENGINE, LOCK_CONTENDED] {
        let handle = program.socket(17);
        program.slot(handle).rx_lock.store(word, Ordering::Relaxed);
        program.slot(handle).tx_lock.store(word, Ordering::Relaxed);
        program.close(handle);
        engine.wait_for("sockets", 0);
        engine.wait_for("slots_awaited", 0);
        let again = program.socket(17);
        assert_eq!(again.slot, handle.slot);
        assert_eq!(program.slot(again).rx_lock.load(Ordering::Relaxed), 0);
        program.close(again);
        // Wait for the end. Otherwise, the next socket may get another slot, and the order of reuse
        // is undefined.
        engine.wait_for("sockets", 0);
    }
}

/// Channel numbers are reused. If a process breaks the rules, sockets that an earlier process with
/// its number has sent in messages stay open.
#[test]
fn who_breaks_the_rules_does_so_for_no_earlier_process() {
    let engine = Running::start(EngineConfig::default());
    let receiver = engine.program();
    let sender = engine.program();
    let (listener, addr) = receiver.listen("127.0.0.1:0");
    let sent = sender.connect(addr);
    let server = receiver.accept(listener);
    receiver.slot(sent).in_flight.store(1, Ordering::Relaxed);
    drop(sender);
    engine.wait_for("channels", 1);
    let bad = engine.program();
    bad.channel.header().command_tail.store(COMMANDS_MAX * 3, Ordering::Release);
    towpath_ring::notification::ring(std::os::fd::AsFd::as_fd(&bad.engine_bell));
    engine.wait_for("hostile_channels", 1);
    receiver.call(&receiver.about(call::ADOPT, sent)).unwrap();
    receiver.slot(sent).in_flight.store(0, Ordering::Relaxed);
    receiver.send(sent, b"still here");
    assert_eq!(receiver.recv(server, 10), b"still here");
}
