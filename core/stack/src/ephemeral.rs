//! Choice of local ports (RFC 6056 §3.3.3, "simple hash-based").

use std::ops::RangeInclusive;

/// The range and the counter.
#[derive(Debug, Clone)]
pub(crate) struct Ephemeral {
    first: u16,
    count: u32,
    next: u32,
}

impl Ephemeral {
    /// Ports of `range`, which must not be empty.
    pub fn new(range: &RangeInclusive<u16>) -> Self {
        let count = u32::from(*range.end()).saturating_sub(u32::from(*range.start())) + 1;
        Self { first: *range.start(), count, next: 0 }
    }

    /// The first port for which `is_free`, starting where `hash` and the counter say. Looks at every
    /// port of the range at most once. The second value is how many were looked at.
    ///
    /// The hash (of our address and the peer, keyed) makes the sequence towards one peer unguessable
    /// from the sequence towards another; the counter makes it go on, so that a port is not used
    /// again soon.
    pub fn choose(
        &mut self,
        hash: u64,
        mut is_free: impl FnMut(u16) -> bool,
    ) -> (Option<u16>, u32) {
        //= https://www.rfc-editor.org/rfc/rfc6056#section-3.3.3
        //# port = min_ephemeral + (next_ephemeral + offset) % num_ephemeral;
        let offset = (hash % u64::from(self.count)) as u32;
        for tried in 1..=self.count {
            let port = self.first + ((offset + self.next) % self.count) as u16;
            self.next = (self.next + 1) % self.count;
            if is_free(port) {
                return (Some(port), tried);
            }
        }
        (None, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_every_port_once_then_none() {
        let mut ports = Ephemeral::new(&(100..=109));
        let mut taken = Vec::new();
        while let (Some(port), _) = ports.choose(1 << 40 | 7, |port| !taken.contains(&port)) {
            taken.push(port);
        }
        taken.sort_unstable();
        assert_eq!(taken, (100..=109).collect::<Vec<_>>());
        assert_eq!(ports.choose(3, |_| false), (None, 10));
    }

    #[test]
    fn the_whole_range_of_ports_works() {
        let mut ports = Ephemeral::new(&(0..=u16::MAX));
        assert_eq!(ports.choose(u64::from(u16::MAX), |_| true), (Some(u16::MAX), 1));
        assert_eq!(ports.choose(u64::from(u16::MAX), |_| true), (Some(0), 1));
    }
}
