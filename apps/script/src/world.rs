//! Host under test: a stack with one link, driven in virtual time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};
use towpath_stack::net::InterfaceConfig;
use towpath_stack::{Budget, Instant, Stack, StackConfig};
use towpath_wire::{MacAddr, Prefix};

use crate::host::ScriptHost;

/// Maximum number of iterations of the stack's event loop at one point of virtual time. If the
/// stack then still has work, it makes no progress, and the script fails.
const TURNS_MAX: usize = 10_000;

/// Packet that the stack has sent, with its time.
#[derive(Debug, Clone)]
pub struct SentPacket {
    pub at: Instant,
    pub bytes: Vec<u8>,
}

/// Packets on the link in both directions.
#[derive(Debug, Default)]
struct LinkQueues {
    to_stack: VecDeque<Vec<u8>>,
    sent: VecDeque<SentPacket>,
}

/// Network port of the stack. The script is the peer on its link.
struct ScriptPort(Rc<RefCell<LinkQueues>>);

impl Port for ScriptPort {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let mut queues = self.0.borrow_mut();
        let count = queues.to_stack.len().min(max);
        for bytes in queues.to_stack.drain(..count) {
            let mut packet = pool.take(bytes.len());
            if let Some(space) = packet.push_back(bytes.len()) {
                space.copy_from_slice(&bytes);
            }
            packet.meta.arrival_ns = now_ns;
            out.push_back(packet);
        }
        count
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let count = batch.len();
        for packet in batch.drain(..) {
            let mut bytes = vec![0; packet.len()];
            packet.copy_to(0, &mut bytes);
            pool.give(packet);
            self.0.borrow_mut().sent.push_back(SentPacket { at: Instant(now_ns), bytes });
        }
        count
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
        (!self.0.borrow().to_stack.is_empty()).then_some(0)
    }
}

/// Host under test, with its stack and its link.
pub struct ScriptWorld {
    pub stack: Stack<ScriptHost>,
    pub host: ScriptHost,
    pub now: Instant,
    pool: Pool,
    ports: Vec<Box<dyn Port>>,
    queues: Rc<RefCell<LinkQueues>>,
}

impl ScriptWorld {
    /// Creates a host with the given addresses. Its link reaches all other addresses.
    pub fn new(config: StackConfig, addresses: &[IpAddr], mtu: u16, now: Instant) -> Self {
        let queues = Rc::new(RefCell::new(LinkQueues::default()));
        let mut stack = Stack::new(config, [7; 32], now);
        // Use prefixes of length 0, so that all peers are on the link, and no route is needed.
        let prefixes = addresses.iter().filter_map(|ip| Prefix::new(*ip, 0)).collect();
        let port = ScriptPort(Rc::clone(&queues));
        let interface = InterfaceConfig {
            name: "tun0".to_owned(),
            link: port.link_type(),
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            mtu: mtu.into(),
            offloads: port.offloads(),
            addresses: prefixes,
            slaac: false,
            any_address: false,
            kernel_cuts: false,
            in_process: false,
        };
        stack.net.add_interface(now, interface);
        let mut world = Self {
            stack,
            host: ScriptHost { sockets: Vec::new() },
            now,
            pool: Pool::default(),
            ports: vec![Box::new(port)],
            queues,
        };
        // Discard the membership reports and solicitations of IPv6, because scripts do not describe
        // them.
        world.settle();
        world.queues.borrow_mut().sent.clear();
        world
    }

    /// Runs turns of the stack at the current time until the stack has no work.
    pub fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let Self { stack, host, ports, pool, now, .. } = self;
            stack.turn(*now, host, ports, pool, Budget::default());
            let is_due = stack.next_timeout().is_some_and(|at| at <= *now);
            if !is_due && self.queues.borrow().to_stack.is_empty() {
                return;
            }
        }
    }

    /// Returns the time of the stack's next timer. `None` if no timer is set.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.stack.next_timeout()
    }

    /// Advances the clock to the time `to`, which must not be later than the next timer, and runs
    /// the stack.
    pub fn step(&mut self, to: Instant) {
        self.now = Instant(self.now.0.max(to.0));
        self.settle();
    }

    pub fn inject(&mut self, bytes: Vec<u8>) {
        self.queues.borrow_mut().to_stack.push_back(bytes);
        self.settle();
    }

    pub fn pop_sent(&mut self) -> Option<SentPacket> {
        self.queues.borrow_mut().sent.pop_front()
    }

    /// Returns a copy of the oldest sent packet that no event of the script has matched yet. `None`
    /// if there is none.
    pub fn peek_sent(&self) -> Option<SentPacket> {
        self.queues.borrow().sent.front().cloned()
    }
}
