//! Measures the cost of bulk data over loopback, which never waits for a device.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use towpath_pool::{Pool, Port};
use towpath_ring::{
    Attach, EngineRecv, EngineSend, Payload, Region, Windows, lock_rx, lock_tx, program_fifo,
};
use towpath_stack::{
    BindOptions, Budget, DatagramMeta, Family, Host, SocketEvent, SocketId, SocketKind, Stack,
    StackConfig,
};
use towpath_tcp::Instant;

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: it is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CAPACITY: u32 = 1 << 20;

struct Program {
    windows: Windows,
    child: Option<SocketId>,
}

impl Host for Program {
    type Recv = EngineRecv;
    type Send = EngineSend;

    fn recv_room(&self, _: u32) -> u32 {
        CAPACITY
    }

    fn accept(
        &mut self,
        _: u32,
        child: SocketId,
        _: SocketAddr,
        _: SocketAddr,
    ) -> Option<(u32, EngineRecv, EngineSend)> {
        self.child = Some(child);
        let recv = EngineRecv::new(&self.windows, 2, CAPACITY, CAPACITY);
        Some((2, recv, EngineSend::new(&self.windows, 2, CAPACITY, CAPACITY)))
    }

    fn datagram(&mut self, _: u32, _: &DatagramMeta, _: &Payload<'_>) -> bool {
        false
    }

    fn event(&mut self, _: u32, _: SocketEvent) {}
}

#[test]
fn bulk_data_over_loopback_allocates_nothing_once_warm() {
    let region = Region::create().unwrap();
    let windows = Windows::new(&region, 1 << 30);
    let mut now = Instant(1_000_000_000);
    let mut stack: Stack<Program> = Stack::new(StackConfig::default(), [7; 32], now);
    let mut program = Program { windows: windows.clone(), child: None };
    let mut pool = Pool::default();
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    let at: SocketAddr = "127.0.0.1:80".parse().unwrap();
    let listener = stack.open(SocketKind::Stream, Family::V4, 0).unwrap();
    stack.bind(listener, at, BindOptions::default()).unwrap();
    stack.listen(listener, 8).unwrap();
    let id = stack.open(SocketKind::Stream, Family::V4, 1).unwrap();
    let recv = EngineRecv::new(&windows, 1, CAPACITY, CAPACITY);
    let send = EngineSend::new(&windows, 1, CAPACITY, CAPACITY);
    stack.connect(now, id, at, recv, send).unwrap();
    for _ in 0..10 {
        stack.turn(now, &mut program, &mut ports, &mut pool, Budget::default());
    }
    let child = program.child.expect("it is connected");
    assert_eq!(stack.send_buffer(id).unwrap().attach(), Attach::Done);
    let (out, back) = (region.slot(1).unwrap(), region.slot(2).unwrap());
    let (bytes, mut to) = (vec![7; CAPACITY as usize], vec![0; CAPACITY as usize]);
    let (mut before, mut moved, mut unpinned) = (0, 0u64, 0);
    for round in 0..2000 {
        if round == 1000 {
            (before, moved, unpinned) = (COUNT.load(Relaxed), 0, 0);
        }
        let room = program_fifo::room(out) as usize;
        {
            let _guard = lock_tx(out, 0, || true);
            program_fifo::write(&region, out, 0, &bytes[..room]);
            let _ = program_fifo::publish(out, room as u32);
        }
        assert!(stack.send_buffer(id).unwrap().pull());
        stack.send_ready(id);
        stack.turn(now, &mut program, &mut ports, &mut pool, Budget::default());
        while windows.pop_unpinned().is_some() {
            unpinned += 1;
            stack.send_buffer(id).unwrap().unpin();
        }
        {
            let _guard = lock_rx(back, 0, || true);
            let unread = program_fifo::unread(back) as usize;
            assert_eq!(program_fifo::peek(&region, back, 0, &mut to[..unread]), unread);
            let _ = program_fifo::consume(back, unread as u32);
            moved += unread as u64;
        }
        stack.recv_taken(now, child);
        now = Instant(now.0 + 100_000);
    }
    let count = COUNT.load(Relaxed) - before;
    let sent = stack.counters().tcp_sent;
    println!("{moved} bytes, {unpinned} unpinned, {count} allocations; {sent} segments in all");
    assert!(moved > 100 << 20, "{moved} bytes");
    assert!(count < 100, "{count} allocations for {moved} bytes; {unpinned} times unpinned");
}
