//! Disciplines with strict priorities: prio and pfifo_fast.

use crate::{Counter, Dropped, Fifo, Qdisc, Queueable, Stats};

/// Queueing disciplines (bands) with strict priorities: a band is served only if all bands before
/// it are empty.
pub struct Prio<T> {
    bands: Vec<Box<dyn Qdisc<T>>>,
    priomap: [u8; 16],
    kind: &'static str,
}

/// Band for each of the 16 packet priorities; the default of tc-prio(8).
pub const PRIOMAP: [u8; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

impl<T: Queueable + 'static> Prio<T> {
    /// Creates a prio discipline from one queueing discipline per band. Priorities mapped to a
    /// missing band use the last band.
    ///
    /// # Panics
    /// If `bands` is empty, because packets could not be queued.
    pub fn new(bands: Vec<Box<dyn Qdisc<T>>>, priomap: [u8; 16]) -> Self {
        assert!(!bands.is_empty(), "prio needs a band");
        Self { bands, priomap, kind: "prio" }
    }

    /// Creates a pfifo_fast discipline: three bands with at most `limit` packets each
    /// (`txqueuelen`).
    pub fn pfifo_fast(limit: usize) -> Self {
        let bands = (0..3).map(|_| Box::new(Fifo::packets(limit)) as Box<dyn Qdisc<T>>).collect();
        Self { kind: "pfifo_fast", ..Self::new(bands, PRIOMAP) }
    }

    /// Returns the queueing discipline of each band.
    pub fn bands(&self) -> &[Box<dyn Qdisc<T>>] {
        &self.bands
    }
}

impl<T: Queueable> Qdisc<T> for Prio<T> {
    fn enqueue(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>) {
        let band = usize::from(self.priomap[usize::from(item.priority() & 15)]);
        let last = self.bands.len() - 1;
        self.bands[band.min(last)].enqueue(now_ns, item, drops);
    }

    fn dequeue(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) -> Option<T> {
        self.bands.iter_mut().find_map(|band| band.dequeue(now_ns, drops))
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        self.bands.iter().filter_map(|band| band.next_timeout_ns()).min()
    }

    fn stats(&self) -> Stats {
        self.bands.iter().map(|band| band.stats()).fold(Stats::default(), Stats::plus)
    }

    fn counters(&self) -> Vec<Counter> {
        vec![("bands", self.bands.len() as u64)]
    }

    fn memory_bytes(&self) -> u64 {
        self.bands.iter().map(|band| band.memory_bytes()).sum()
    }

    fn kind(&self) -> &'static str {
        self.kind
    }
}
