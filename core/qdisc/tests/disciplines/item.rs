//! Test items, and their fates.

use towpath_qdisc::{DropCause, Dropped, Ecn, Qdisc, Queueable};

pub const MS: u64 = 1_000_000;

/// A test packet with a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    pub number: u64,
    pub bytes: usize,
    pub flow: u32,
    pub ecn: Ecn,
    pub priority: u8,
}

impl Numbered {
    pub fn new(number: u64, bytes: usize) -> Self {
        Self { number, bytes, flow: 0, ecn: Ecn::NotEct, priority: 0 }
    }
}

impl Queueable for Numbered {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn flow_hash(&self) -> u32 {
        self.flow
    }

    fn ecn(&self) -> Ecn {
        self.ecn
    }

    fn mark_ce(&mut self) -> bool {
        let is_capable = self.ecn != Ecn::NotEct;
        if is_capable {
            self.ecn = Ecn::Ce;
        }
        is_capable
    }

    fn priority(&self) -> u8 {
        self.priority
    }
}

/// Fate of an item, with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Sent { now_ns: u64, number: u64, marked: bool },
    Dropped { now_ns: u64, number: u64, cause: DropCause },
}

/// A discipline under test, and the fates of its items in order.
pub struct Bench<Q> {
    pub queue: Q,
    pub fates: Vec<Fate>,
    drops: Vec<Dropped<Numbered>>,
}

impl<Q: Qdisc<Numbered>> Bench<Q> {
    pub fn new(queue: Q) -> Self {
        Self { queue, fates: Vec::new(), drops: Vec::new() }
    }

    pub fn put(&mut self, now_ns: u64, item: Numbered) {
        self.queue.enqueue(now_ns, item, &mut self.drops);
        self.note_drops(now_ns);
    }

    /// Dequeues an item, and returns its number.
    pub fn take(&mut self, now_ns: u64) -> Option<u64> {
        let item = self.queue.dequeue(now_ns, &mut self.drops);
        self.note_drops(now_ns);
        let item = item?;
        let (number, marked) = (item.number, item.ecn == Ecn::Ce);
        self.fates.push(Fate::Sent { now_ns, number, marked });
        Some(number)
    }

    pub fn dropped(&self) -> Vec<u64> {
        let number = |fate: &Fate| match fate {
            Fate::Dropped { number, .. } => Some(*number),
            Fate::Sent { .. } => None,
        };
        self.fates.iter().filter_map(number).collect()
    }

    pub fn marked(&self) -> Vec<u64> {
        let number = |fate: &Fate| match fate {
            Fate::Sent { number, marked: true, .. } => Some(*number),
            _ => None,
        };
        self.fates.iter().filter_map(number).collect()
    }

    /// Returns a counter of the discipline.
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.queue.counters();
        counters.iter().find(|(known, _)| *known == name).expect(name).1
    }

    fn note_drops(&mut self, now_ns: u64) {
        self.fates.extend(self.drops.drain(..).map(|Dropped { item, cause }| Fate::Dropped {
            now_ns,
            number: item.number,
            cause,
        }));
    }
}
