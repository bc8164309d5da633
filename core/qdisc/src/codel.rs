//! CoDel (RFC 8289): drops packets from the head of the queue while their sojourn time exceeds a
//! target.

use crate::timed::TimedQueue;
use crate::{Counter, DropCause, Dropped, Qdisc, Queueable, Stats};

/// Parameters of CoDel, named as in tc-codel(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodelParams {
    /// Maximum number of packets in the queue.
    pub limit: usize,
    /// Target for the sojourn time of packets in a standing queue, in nanoseconds.
    pub target_ns: u64,
    /// Time in nanoseconds for which the sojourn time may exceed the target before packets are
    /// dropped: a worst-case round-trip time.
    pub interval_ns: u64,
    /// Whether to mark ECN-capable packets instead of dropping them.
    pub ecn: bool,
    /// Sojourn time in nanoseconds above which every ECN-capable packet is marked; `None` disables
    /// this.
    pub ce_threshold_ns: Option<u64>,
    /// Maximum packet length in bytes. While the queue has at most this many bytes, no packet is
    /// dropped.
    pub mtu: u64,
}

impl Default for CodelParams {
    fn default() -> Self {
        // RFC 8289 section 4: the interval covers the round-trip time of most paths, and the target
        // is 5 % of the interval.
        let (target_ns, interval_ns) = (5_000_000, 100_000_000);
        // As in tc: at most 1000 packets, and the MTU of Ethernet with its header.
        Self { limit: 1000, target_ns, interval_ns, ecn: false, ce_threshold_ns: None, mtu: 1514 }
    }
}

/// A FIFO queue controlled by CoDel.
#[derive(Debug)]
pub struct Codel<T> {
    params: CodelParams,
    queue: TimedQueue<T>,
    control: Control,
    tally: Tally,
    overlimit: u64,
}

impl<T: Queueable> Codel<T> {
    /// Creates an empty queue.
    pub fn new(params: CodelParams) -> Self {
        let (control, tally) = (Control::default(), Tally::default());
        Self { params, queue: TimedQueue::new(), control, tally, overlimit: 0 }
    }
}

impl<T: Queueable> Qdisc<T> for Codel<T> {
    fn enqueue(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>) {
        let bytes = item.bytes();
        self.tally.stats.offer(bytes);
        if self.queue.len() < self.params.limit {
            return self.queue.push(now_ns, item);
        }
        self.tally.stats.drop(bytes);
        self.tally.stats.overlimits += 1;
        self.overlimit += 1;
        drops.push(Dropped { item, cause: DropCause::Overlimit });
    }

    fn dequeue(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) -> Option<T> {
        let Self { params, queue, control, tally, .. } = self;
        let item = control.dequeue(params, now_ns, queue, tally, drops)?;
        tally.stats.send(item.bytes());
        Some(item)
    }

    fn stats(&self) -> Stats {
        self.tally.stats
    }

    fn counters(&self) -> Vec<Counter> {
        let Control { count, last_count, is_dropping, delay_ns, drop_next_ns, .. } = self.control;
        vec![
            ("count", count.into()),
            ("lastcount", last_count.into()),
            ("ldelay_ns", delay_ns),
            ("dropping", is_dropping.into()),
            ("drop_next_ns", if is_dropping { drop_next_ns } else { 0 }),
            ("ecn_mark", self.tally.stats.ecn_mark),
            ("drop_overlimit", self.overlimit),
            ("ce_mark", self.tally.ce_mark),
        ]
    }

    fn memory_bytes(&self) -> u64 {
        self.queue.memory_bytes()
    }

    fn kind(&self) -> &'static str {
        "codel"
    }
}

/// Counters that are common to all queues of a queueing discipline.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) stats: Stats,
    /// Number of items marked because of `ce_threshold_ns`.
    pub(crate) ce_mark: u64,
}

/// State of CoDel's control loop for one queue. The fields are named as the variables of RFC 8289
/// section 5.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// Number of drops since the queue entered the dropping state.
    pub(crate) count: u32,
    last_count: u32,
    is_dropping: bool,
    /// Time at which dropping may begin: one interval after the sojourn time first exceeded the
    /// target. `None` while the sojourn time is below the target.
    first_above_ns: Option<u64>,
    drop_next_ns: u64,
    /// Sojourn time of the item dequeued last, in nanoseconds.
    delay_ns: u64,
}

/// An item removed from the head of the queue, and whether CoDel may drop it. Dropping is permitted
/// if the sojourn time has exceeded the target for an interval.
struct CodelHead<T> {
    item: T,
    ok_to_drop: bool,
}

impl Control {
    /// Returns the next item to send (`codel_queue_t::deque` of RFC 8289).
    pub(crate) fn dequeue<T: Queueable>(
        &mut self,
        params: &CodelParams,
        now_ns: u64,
        queue: &mut TimedQueue<T>,
        tally: &mut Tally,
        drops: &mut Vec<Dropped<T>>,
    ) -> Option<T> {
        let head = self.pop(params, now_ns, queue);
        let head = match head {
            Some(head) if self.is_dropping && head.ok_to_drop => {
                self.go_on(params, now_ns, head, queue, tally, drops)
            }
            Some(head) if head.ok_to_drop => self.enter(params, now_ns, head, queue, tally, drops),
            other => {
                self.is_dropping = false;
                other
            }
        };
        let mut item = head?.item;
        let is_late = params.ce_threshold_ns.is_some_and(|threshold| self.delay_ns > threshold);
        if is_late && item.mark_ce() {
            tally.ce_mark += 1;
        }
        Some(item)
    }

    /// Continues in the dropping state: drops or marks items as long as a drop is due. Several
    /// drops may be due at once if the backlog is large.
    fn go_on<T: Queueable>(
        &mut self,
        params: &CodelParams,
        now_ns: u64,
        head: CodelHead<T>,
        queue: &mut TimedQueue<T>,
        tally: &mut Tally,
        drops: &mut Vec<Dropped<T>>,
    ) -> Option<CodelHead<T>> {
        let mut head = head;
        while self.is_dropping && now_ns >= self.drop_next_ns {
            let is_marked = signal(params, &mut head, tally);
            //= https://www.rfc-editor.org/rfc/rfc8289#section-5.5
            //# drop(r.p);
            //# ++count_;
            //# r = dodequeue(now);
            // Count this drop even if it ends the dropping state. If the queue fills again soon,
            // `enter` continues with the drop rate that `count` determines.
            self.count = self.count.wrapping_add(1);
            if is_marked {
                self.drop_next_ns = self.control_law(params, self.drop_next_ns);
                break;
            }
            drop_item(head.item, tally, drops);
            let Some(next) = self.pop(params, now_ns, queue) else {
                self.is_dropping = false;
                return None;
            };
            head = next;
            if head.ok_to_drop {
                //= https://www.rfc-editor.org/rfc/rfc8289#section-5.5
                //# schedule the next drop.
                self.drop_next_ns = self.control_law(params, self.drop_next_ns);
            } else {
                self.is_dropping = false;
            }
        }
        Some(head)
    }

    /// Enters the dropping state, because the sojourn time exceeded the target for an interval:
    /// drops or marks one item.
    fn enter<T: Queueable>(
        &mut self,
        params: &CodelParams,
        now_ns: u64,
        mut head: CodelHead<T>,
        queue: &mut TimedQueue<T>,
        tally: &mut Tally,
        drops: &mut Vec<Dropped<T>>,
    ) -> Option<CodelHead<T>> {
        let head = if signal(params, &mut head, tally) {
            Some(head)
        } else {
            drop_item(head.item, tally, drops);
            self.pop(params, now_ns, queue)
        };
        self.is_dropping = true;
        //= https://www.rfc-editor.org/rfc/rfc8289#section-5.5
        //# If min went above TARGET close to when it last went
        //# below, assume that the drop rate that controlled the
        //# queue on the last cycle is a good starting point to
        //# control it now.
        let delta = self.count.wrapping_sub(self.last_count);
        let since_ns = now_ns.saturating_sub(self.drop_next_ns);
        let is_recent = since_ns < RECENT_INTERVALS * params.interval_ns;
        self.count = if delta > 1 && is_recent { delta } else { 1 };
        self.drop_next_ns = self.control_law(params, now_ns);
        self.last_count = self.count;
        head
    }

    /// Removes the item at the head, and checks its sojourn time (`dodequeue` of RFC 8289).
    fn pop<T: Queueable>(
        &mut self,
        params: &CodelParams,
        now_ns: u64,
        queue: &mut TimedQueue<T>,
    ) -> Option<CodelHead<T>> {
        let Some((since_ns, item)) = queue.pop() else {
            self.first_above_ns = None;
            return None;
        };
        self.delay_ns = now_ns.saturating_sub(since_ns);
        //= https://www.rfc-editor.org/rfc/rfc8289#section-5.6
        //# The goal here is to keep the output link
        //# utilization high by never allowing the queue to get
        //# smaller than the amount that arrives in a typical
        //# interarrival time
        let mut ok_to_drop = false;
        if self.delay_ns < params.target_ns || queue.bytes() <= params.mtu {
            self.first_above_ns = None;
        } else if let Some(first_above_ns) = self.first_above_ns {
            ok_to_drop = now_ns >= first_above_ns;
        } else {
            self.first_above_ns = Some(now_ns + params.interval_ns);
        }
        Some(CodelHead { item, ok_to_drop })
    }

    //= https://www.rfc-editor.org/rfc/rfc8289#section-5.6
    //# return t + INTERVAL / sqrt(count);
    fn control_law(&self, params: &CodelParams, from_ns: u64) -> u64 {
        from_ns + (params.interval_ns as f64 / f64::from(self.count.max(1)).sqrt()) as u64
    }
}

/// Number of intervals after the dropping state for which the drop rate is remembered (RFC 8289
/// section 5.5).
const RECENT_INTERVALS: u64 = 16;

/// Marks an item instead of dropping it, if ECN is enabled and the item is ECN-capable. Returns
/// whether it was marked.
fn signal<T: Queueable>(params: &CodelParams, head: &mut CodelHead<T>, tally: &mut Tally) -> bool {
    let is_marked = params.ecn && head.item.mark_ce();
    tally.stats.ecn_mark += u64::from(is_marked);
    is_marked
}

fn drop_item<T: Queueable>(item: T, tally: &mut Tally, drops: &mut Vec<Dropped<T>>) {
    tally.stats.drop(item.bytes());
    drops.push(Dropped { item, cause: DropCause::Early });
}
