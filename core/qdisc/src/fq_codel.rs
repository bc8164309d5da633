//! FQ-CoDel (RFC 8290): each flow has a queue controlled by CoDel. The queues are served
//! round-robin by bytes, and sparse flows have priority.

use std::cmp::Reverse;
use std::collections::VecDeque;

use crate::codel::{Control, Tally};
use crate::timed::TimedQueue;
use crate::{CodelParams, Counter, DropCause, Dropped, Qdisc, Queueable, Stats};
use towpath_dice::mix;

/// Parameters of FQ-CoDel, named as in tc-fq_codel(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FqCodelParams {
    /// CoDel parameters of each queue; `limit` applies to all queues together.
    pub codel: CodelParams,
    /// Number of queues among which flows are distributed by their hash.
    pub flows: usize,
    /// Number of bytes that a queue may send per round of the round-robin.
    pub quantum: u32,
    /// Maximum number of bytes in all queues together.
    pub memory_limit: u64,
    /// Maximum number of packets that are dropped at once when a limit is reached.
    pub drop_batch: usize,
    /// Random key of the flow hash. Flows whose hashes collide with this key do not collide with
    /// another key.
    pub perturbation: u64,
}

impl Default for FqCodelParams {
    fn default() -> Self {
        // As in tc: at most 10240 packets and 32 MiB, 1024 queues, and ECN. RFC 8290 section 5.2.4
        // recommends a quantum of 1514 bytes.
        Self {
            codel: CodelParams { limit: 10_240, ecn: true, ..CodelParams::default() },
            flows: 1024,
            quantum: 1514,
            memory_limit: 32 << 20,
            drop_batch: 64,
            perturbation: 0,
        }
    }
}

/// The FQ-CoDel queueing discipline.
#[derive(Debug)]
pub struct FqCodel<T> {
    params: FqCodelParams,
    /// For each hash value, one plus the index of its queue in `flows`. 0 means that no packet has
    /// had this hash value, so that it has no queue.
    table: Vec<u32>,
    flows: Vec<FlowQueue<T>>,
    /// Indices of the active queues. `new` has those that became active recently, and `old` has the
    /// remaining ones.
    new: VecDeque<u32>,
    old: VecDeque<u32>,
    tally: Tally,
    new_flow_count: u64,
    overlimit: u64,
    overmemory: u64,
    maxpacket: u64,
}

#[derive(Debug)]
struct FlowQueue<T> {
    /// Index of this queue in `table`: the hash value of its packets.
    hash: u32,
    queue: TimedQueue<T>,
    control: Control,
    /// Number of bytes that the queue may still send in this round.
    deficit: i64,
    /// Whether the queue is in one of the lists `new` and `old`.
    is_listed: bool,
}

impl<T: Queueable> FqCodel<T> {
    /// Creates an FQ-CoDel discipline. The queues of flows are allocated when packets arrive.
    pub fn new(params: FqCodelParams) -> Self {
        Self {
            params,
            table: vec![0; params.flows.max(1)],
            flows: Vec::new(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            tally: Tally::default(),
            new_flow_count: 0,
            overlimit: 0,
            overmemory: 0,
            maxpacket: 0,
        }
    }

    /// Returns the index in `flows` of the item's queue. Allocates the queue for the first item
    /// with this hash value.
    fn classify(&mut self, item: &T) -> u32 {
        let hash = mix(self.params.perturbation ^ u64::from(item.flow_hash())) >> 32;
        let hash = ((hash * self.table.len() as u64) >> 32) as u32;
        let entry = &mut self.table[hash as usize];
        if *entry == 0 {
            self.flows.push(FlowQueue {
                hash,
                queue: TimedQueue::new(),
                control: Control::default(),
                deficit: 0,
                is_listed: false,
            });
            *entry = self.flows.len() as u32;
        }
        *entry - 1
    }

    /// Drops packets from the head of the longest queue: half of its packets, but at most one
    /// batch. The search for this queue takes time in proportion to the number of queues, so
    /// dropping a batch amortizes it.
    fn drop_from_longest(&mut self, drops: &mut Vec<Dropped<T>>) {
        // If several queues are equally long, select the one with the lowest hash value, like
        // Linux.
        let order = |flow: &&mut FlowQueue<T>| (flow.queue.bytes(), Reverse(flow.hash));
        let Some(flow) = self.flows.iter_mut().max_by_key(order) else { return };
        //= https://www.rfc-editor.org/rfc/rfc8290#section-4.1
        //# the
        //# queue with the largest current byte count is selected and half the
        //# number of packets from this queue (up to a maximum of 64 packets) are
        //# dropped from the head of that queue.
        let half = flow.queue.len().div_ceil(2);
        for _ in 0..half.min(self.params.drop_batch.max(1)) {
            let Some((_, item)) = flow.queue.pop() else { return };
            // Like Linux, count these drops in the CoDel state of the queue as well.
            flow.control.count = flow.control.count.wrapping_add(1);
            self.tally.stats.drop(item.bytes());
            drops.push(Dropped { item, cause: DropCause::Overlimit });
        }
    }
}

impl<T: Queueable> Qdisc<T> for FqCodel<T> {
    fn enqueue(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>) {
        let (at, bytes) = (self.classify(&item), item.bytes());
        let flow = &mut self.flows[at as usize];
        self.tally.stats.offer(bytes);
        self.maxpacket = self.maxpacket.max(bytes as u64);
        flow.queue.push(now_ns, item);
        if !flow.is_listed {
            //= https://www.rfc-editor.org/rfc/rfc8290#section-4.1
            //# it is added to the end of the list of new queues
            flow.is_listed = true;
            flow.deficit = self.params.quantum.into();
            self.new.push_back(at);
            self.new_flow_count += 1;
        }
        let Stats { backlog_packets, backlog_bytes, .. } = self.tally.stats;
        let is_full = backlog_packets > self.params.codel.limit as u64;
        let is_heavy = backlog_bytes > self.params.memory_limit;
        if is_full || is_heavy {
            self.tally.stats.overlimits += 1;
            let before = drops.len();
            self.drop_from_longest(drops);
            let counter = if is_heavy { &mut self.overmemory } else { &mut self.overlimit };
            *counter += (drops.len() - before) as u64;
        }
    }

    fn dequeue(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) -> Option<T> {
        loop {
            let is_new = !self.new.is_empty();
            let at = *if is_new { self.new.front() } else { self.old.front() }?;
            let flow = self.flows.get_mut(at as usize)?;
            let list = if is_new { &mut self.new } else { &mut self.old };
            //= https://www.rfc-editor.org/rfc/rfc8290#section-4.2
            //# if that queue has a
            //# negative number of credits (i.e., it has already dequeued at least a
            //# quantum of bytes), it is given an additional quantum of credits
            // As in Linux, a queue that has sent its quantum of this round gets a new quantum, and
            // moves to the end of the list.
            if flow.deficit <= 0 {
                flow.deficit += i64::from(self.params.quantum.max(1));
                list.pop_front();
                self.old.push_back(at);
                continue;
            }
            let FlowQueue { queue, control, .. } = flow;
            let next = control.dequeue(&self.params.codel, now_ns, queue, &mut self.tally, drops);
            if let Some(item) = next {
                flow.deficit -= item.bytes() as i64;
                self.tally.stats.send(item.bytes());
                return Some(item);
            }
            list.pop_front();
            //= https://www.rfc-editor.org/rfc/rfc8290#section-4.2
            //# The step that moves an empty queue from the list of new queues to the
            //# end of the list of old queues before it is removed is crucial to
            //# prevent starvation.
            // Move the queue to the list of old queues. Unlike Linux, do this even if that list is
            // empty.
            if is_new {
                self.old.push_back(at);
            } else {
                flow.is_listed = false;
            }
        }
    }

    fn stats(&self) -> Stats {
        self.tally.stats
    }

    fn counters(&self) -> Vec<Counter> {
        vec![
            ("maxpacket", self.maxpacket),
            ("drop_overlimit", self.overlimit),
            ("new_flow_count", self.new_flow_count),
            ("ecn_mark", self.tally.stats.ecn_mark),
            ("ce_mark", self.tally.ce_mark),
            ("drop_overmemory", self.overmemory),
            ("new_flows_len", self.new.len() as u64),
            ("old_flows_len", self.old.len() as u64),
        ]
    }

    fn memory_bytes(&self) -> u64 {
        let tables = self.table.capacity() * size_of::<u32>()
            + self.flows.capacity() * size_of::<FlowQueue<T>>()
            + (self.new.capacity() + self.old.capacity()) * size_of::<u32>();
        let items: u64 = self.flows.iter().map(|flow| flow.queue.memory_bytes()).sum();
        tables as u64 + items
    }

    fn kind(&self) -> &'static str {
        "fq_codel"
    }
}
