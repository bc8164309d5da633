//! Choice of ephemeral ports (RFC 6056 §3.3.3, "simple hash-based"). The time of a choice is
//! bounded, whatever the number of ports in use.

use std::ops::RangeInclusive;

use crate::limits::PORTS_PROBED_MAX;
use crate::ports::port_set::PortSets;

/// Range of ephemeral ports, and the counter of the algorithm that chooses them.
#[derive(Debug, Clone)]
pub(crate) struct Ephemeral {
    first: u16,
    count: u32,
    next: u32,
    /// Distance between two successive candidates of the search for a port that can be shared, see
    /// [`stride`].
    stride: u32,
}

/// Result of choosing an ephemeral port.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PortChoice {
    pub port: Option<u16>,
    /// Number of ports that were tried.
    pub tried: u32,
}

impl Ephemeral {
    /// Creates the generator for a range of ports, which must not be empty.
    pub fn new(range: &RangeInclusive<u16>) -> Self {
        let count = u32::from(*range.end()).saturating_sub(u32::from(*range.start())) + 1;
        Self { first: *range.start(), count, next: 0, stride: stride(count) }
    }

    /// Returns the generator for a socket with IP_LOCAL_PORT_RANGE. As in
    /// `inet_sk_get_local_port_range`, a bound is ignored if it is outside the host's range, or 0.
    pub fn within(&self, range: (u16, u16)) -> Self {
        let (least, most) = range;
        let last = (u32::from(self.first) + self.count - 1) as u16;
        let own = self.first..=last;
        let first = if own.contains(&least) { least } else { self.first };
        let last = if own.contains(&most) { most } else { last };
        if (first, last) == (*own.start(), *own.end()) || first > last {
            return self.clone();
        }
        Self { next: self.next, ..Self::new(&(first..=last)) }
    }

    /// Advances the counter of this range after a choice from a generator of
    /// [`within`](Self::within).
    pub fn follow(&mut self, choice: &Self) {
        let is_same = (choice.first, choice.count) == (self.first, self.count);
        self.next = if is_same { choice.next } else { (self.next + 1) % self.count };
    }

    /// Returns a port for which `is_free` returns true. The search for a port that is not in
    /// `occupied` begins at a position computed from `hash` and the counter. If all ports are
    /// occupied, a port that can be shared is returned. Shared candidates are tried a [`stride`]
    /// apart, because ports chosen successively often lead to the same peer. At most
    /// [`PORTS_PROBED_MAX`] ports are tried. A small range is tried completely. In a larger range,
    /// a port is found if 1 % of the ports are free.
    ///
    /// `hash` is a keyed hash of our address and the peer, so that a peer cannot guess the ports
    /// used for other peers. The counter delays the reuse of a port.
    pub fn choose(
        &mut self,
        hash: u64,
        occupied: &PortSets<'_>,
        mut is_free: impl FnMut(u16) -> bool,
    ) -> PortChoice {
        //= https://www.rfc-editor.org/rfc/rfc6056#section-3.3.3
        //# port = min_ephemeral + (next_ephemeral + offset) % num_ephemeral;
        let offset = (hash % u64::from(self.count)) as u32;
        let start = (offset + self.next) % self.count;
        let mut tried = 0;
        // First try ports outside `occupied`. Ports outside it are usually free, because only
        // connections that `occupied` does not contain can use them.
        let mut ahead = 0;
        while tried < PORTS_PROBED_MAX / 2
            && let Some(vacant) = self.vacant(start, ahead, occupied)
        {
            tried += 1;
            ahead = vacant + 1;
            let port = self.port(start + vacant);
            if is_free(port) {
                self.next = (self.next + ahead) % self.count;
                return PortChoice { port: Some(port), tried };
            }
        }
        let shared = (0..self.count.min(PORTS_PROBED_MAX - tried))
            .map(|n| {
                self.port(
                    start + (u64::from(n) * u64::from(self.stride) % u64::from(self.count)) as u32,
                )
            })
            .inspect(|_| tried += 1)
            .find(|port| is_free(*port));
        self.next = (self.next + 1) % self.count;
        PortChoice { port: shared, tried }
    }

    /// Returns the distance from `start` to the next port that is not in `occupied`; at least
    /// `ahead`.
    fn vacant(&self, start: u32, ahead: u32, occupied: &PortSets<'_>) -> Option<u32> {
        let (begin, end) = (u32::from(self.first), u32::from(self.first) + self.count);
        let from = begin + start + ahead;
        // Search the ports up to the end of the range first, and then those before the start.
        let up = (from < end).then(|| occupied.first_missing(from..end)).flatten();
        let wrapped = from.max(end) - self.count..begin + start;
        let found = up.or_else(|| occupied.first_missing(wrapped))?;
        Some((found + self.count - begin - start) % self.count)
    }

    fn port(&self, at: u32) -> u16 {
        self.first + (at % self.count) as u16
    }
}

/// Returns the distance between candidates that are tried one after another. The distance is the
/// smallest number that is coprime to `count` and at least 0.618 · `count` (golden ratio), rounded
/// down. The candidates then visit all `count` ports, and are nearly evenly spread at any time
/// (Knuth, TAOCP 6.4, theorem S).
fn stride(count: u32) -> u32 {
    let golden = (u64::from(count) * 0x9e37 / 0x1_0000) as u32;
    (golden.max(1)..).find(|step| common_divisor(*step, count) == 1).unwrap_or(1)
}

fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::port_set::PortSet;

    fn choose(ports: &mut Ephemeral, hash: u64, taken: &[u16]) -> Option<u16> {
        ports.choose(hash, &PortSets(&[]), |port| !taken.contains(&port)).port
    }

    #[test]
    fn gives_every_port_once_then_none() {
        let mut ports = Ephemeral::new(&(100..=109));
        let mut taken = Vec::new();
        while let Some(port) = choose(&mut ports, 1 << 40 | 7, &taken) {
            taken.push(port);
        }
        taken.sort_unstable();
        assert_eq!(taken, (100..=109).collect::<Vec<_>>());
        assert_eq!(choose(&mut ports, 3, &taken), None);
    }

    /// As in `inet_sk_get_local_port_range`, a bound outside the host's range is ignored.
    #[test]
    fn a_narrower_range_lies_within_the_hosts() {
        let all = Ephemeral::new(&(100..=199));
        let within = |ports| {
            let narrow = all.within(ports);
            (narrow.first, u32::from(narrow.first) + narrow.count - 1)
        };
        assert_eq!(within((0, 0)), (100, 199));
        assert_eq!(within((150, 160)), (150, 160));
        assert_eq!(within((150, 0)), (150, 199));
        assert_eq!(within((0, 150)), (100, 150));
        assert_eq!(within((50, 150)), (100, 150));
        assert_eq!(within((150, 500)), (150, 199));
        assert_eq!(within((500, 600)), (100, 199));
        assert_eq!(within((199, 199)), (199, 199));
        let mut ports = all.clone();
        let mut narrow = ports.within((150, 152));
        let mut taken = Vec::new();
        while let Some(port) = choose(&mut narrow, 77, &taken) {
            taken.push(port);
            ports.follow(&narrow);
        }
        taken.sort_unstable();
        assert_eq!((taken, ports.next), (vec![150, 151, 152], 3));
    }

    #[test]
    fn the_whole_range_of_ports_works() {
        let mut ports = Ephemeral::new(&(0..=u16::MAX));
        let hash = u64::from(u16::MAX);
        assert_eq!(choose(&mut ports, hash, &[]), Some(u16::MAX));
        assert_eq!(choose(&mut ports, hash, &[]), Some(0));
    }

    /// All ports except one are in use. Tested for several free ports and start positions.
    #[test]
    fn the_last_port_that_nobody_is_on_is_found_at_once() {
        for free in [32768, 32769, 40_000, 60_998, 60_999] {
            let occupied = PortSet::default();
            (32768..=60999).filter(|port| *port != free).for_each(|port| occupied.set(port, true));
            for hash in [0, 1, 7232, 14_000, 28_230, 28_231] {
                let mut ports = Ephemeral::new(&(32768..=60999));
                let chosen = ports.choose(hash, &PortSets(&[&occupied]), |_| true);
                assert_eq!(chosen, PortChoice { port: Some(free), tried: 1 }, "{hash}");
            }
        }
    }

    /// Tests that a search does not exceed its limit if all ports are in use. The search must find
    /// a port if only 1 % of the ports can be shared, even if these ports are adjacent.
    #[test]
    fn shared_ports_are_found_at_a_bounded_cost() {
        let occupied = PortSet::default();
        (32768..=60999).for_each(|port| occupied.set(port, true));
        for hash in (0..28_232).step_by(97) {
            let mut ports = Ephemeral::new(&(32768..=60999));
            let none = ports.choose(hash, &PortSets(&[&occupied]), |_| false);
            assert_eq!(none, PortChoice { port: None, tried: PORTS_PROBED_MAX });
            let free = 50_000..50_282;
            let found = ports.choose(hash, &PortSets(&[&occupied]), |port| free.contains(&port));
            assert!(found.port.is_some(), "{hash}: {} tried", found.tried);
        }
    }

    #[test]
    fn a_stride_leads_to_every_port() {
        for count in [1, 2, 3, 10, 28_231, 28_232, 65_536] {
            let step = stride(count);
            let places = (0..u64::from(count)).map(|n| n * u64::from(step) % u64::from(count));
            let mut seen = vec![false; count as usize];
            places.for_each(|at| seen[at as usize] = true);
            assert!(seen.into_iter().all(|seen| seen), "{step} of {count}");
        }
    }
}
