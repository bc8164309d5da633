//! Programs that send datagrams through a slow device.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use towpath_engine::EngineConfig;
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};

use crate::options::interface;
use crate::program::{Running, eventually};

/// A device that accepts no packets until it is opened, and then all.
#[derive(Clone, Default)]
struct Lazy {
    is_open: Arc<AtomicBool>,
    taken: Arc<AtomicU64>,
    looked_ns: u64,
}

impl Port for Lazy {
    fn poll(&mut self, now_ns: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
        self.looked_ns = now_ns;
        0
    }
    fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = if self.is_open.load(SeqCst) { batch.len() } else { 0 };
        batch.drain(..n).for_each(|packet| pool.give(packet));
        self.taken.fetch_add(n as u64, SeqCst);
        n
    }
    fn offloads(&self) -> Offloads {
        Offloads { checksum: true, ..Offloads::default() }
    }
    fn link_type(&self) -> LinkType {
        LinkType::Ip
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn next_timeout_ns(&self) -> Option<u64> {
        Some(self.looked_ns + Duration::from_millis(5).as_nanos() as u64)
    }
}

/// Datagrams that the device has no room for stay in the program's FIFO: none is lost, and the
/// sender waits, as on Linux. When the socket is closed, its datagrams are queued at once, or
/// dropped.
#[test]
fn datagrams_wait_for_a_device_that_does_not_keep_up() {
    const LEN: usize = 1000;
    const COUNT: u64 = 190;
    let device = Lazy::default();
    let port = device.clone();
    let config = EngineConfig { interfaces: vec![interface()], ..EngineConfig::default() };
    let engine = Running::start_with(config, move || vec![Box::new(port)]);
    let program = engine.program();
    let to = Some("10.0.0.9:9".parse().unwrap());
    let socket = program.socket(17);
    let share = 128 << 10;
    for _ in 0..COUNT {
        program.send_to(socket, to, &[7; LEN]);
    }
    engine.wait_for("udp_waits_for_share", 1);
    let sent = engine.counter("udp_sent");
    assert!(sent.abs_diff(share / (LEN as u64 + 28)) < 2, "{sent} are in the queue");
    assert_eq!(device.taken.load(SeqCst), 0);

    device.is_open.store(true, SeqCst);
    eventually("all of them", || (device.taken.load(SeqCst) == COUNT).then_some(()));
    assert_eq!(engine.counter("udp_sent"), COUNT);

    device.is_open.store(false, SeqCst);
    for _ in 0..COUNT {
        program.send_to(socket, to, &[7; LEN]);
    }
    engine.wait_for("udp_waits_for_share", 2);
    program.close(socket);
    engine.wait_for("sockets", 0);
    assert_eq!(engine.counter("udp_sent"), 2 * COUNT);
    device.is_open.store(true, SeqCst);
    eventually("the rest", || (device.taken.load(SeqCst) == 2 * COUNT).then_some(()));
}
