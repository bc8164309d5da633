//! How an engine ends with its last program.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use towpath_engine::{EngineConfig, Left};
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};

use crate::options;
use crate::program::Running;

/// A link that keeps what it took from programs, and delivers it bit by bit until something stays.
struct Holding {
    since: Instant,
    /// When the engine looked last, on its clock.
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
        // Like a device, it stays silent when nothing moves.
        let moves = self.undelivered() > self.stays;
        moves.then_some(self.looked_ns + A_BYTE.as_nanos() as u64)
    }
    fn undelivered(&self) -> u64 {
        let delivered = self.since.elapsed().as_nanos() / A_BYTE.as_nanos();
        HELD.saturating_sub(delivered as u64).max(self.stays)
    }
}

fn holding(stays: u64) -> Vec<Box<dyn Port>> {
    vec![Box::new(Holding { since: Instant::now(), looked_ns: 0, stays })]
}

fn config(leave_stalled: Duration) -> EngineConfig {
    let interfaces = vec![options::interface()];
    EngineConfig { exit_when_unused: true, leave_stalled, interfaces, ..EngineConfig::default() }
}

#[test]
fn it_stays_while_bytes_move() {
    let start = Instant::now();
    // Less than all of it takes, and more than a slow machine sleeps.
    let mut engine = Running::start_with(config(A_BYTE * (HELD as u32 - 1)), || holding(0));
    drop(engine.program());
    engine.join();
    assert!(start.elapsed() >= A_BYTE * HELD as u32, "{:?}", start.elapsed());
}

#[test]
fn it_goes_when_nobody_takes_any_more() {
    const STALLED: Duration = Duration::from_millis(200);
    let mut engine = Running::start_with(config(STALLED), || holding(HELD));
    let program = engine.program();
    let left = engine.remote.left().unwrap();
    assert_eq!(left, Left { processes: 1, unsent: HELD });
    let start = Instant::now();
    drop(program);
    engine.join();
    assert!(start.elapsed() >= STALLED, "{:?}", start.elapsed());
}
