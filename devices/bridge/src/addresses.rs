//! Table of the Ethernet addresses that a bridge has learned, with their ports.

use std::collections::HashMap;

/// Ethernet address, in the order of transmission.
pub(crate) type Mac = [u8; 6];

/// Result of recording the port behind which an Ethernet address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Learned {
    /// The address was already known on the port, or was not known at all.
    Here,
    /// The address was known on another port, and has moved to the port on which the frame arrived.
    Moved,
    /// The address was not learned, because the port has reached its limit of addresses.
    Full,
}

#[derive(Debug, Clone, Copy)]
struct SeenAddress {
    port: usize,
    at_ns: u64,
}

/// Learned Ethernet addresses, each with its port and the time of its last frame. Remote hosts
/// choose the addresses, so the table uses the keyed hash of the standard library.
#[derive(Debug)]
pub(crate) struct LearnedAddresses {
    seen: HashMap<Mac, SeenAddress>,
    /// Number of learned addresses of each port.
    counts: Vec<usize>,
    max: usize,
    ageing_ns: u64,
    /// Time of the last removal of expired addresses, in nanoseconds.
    swept_ns: u64,
}

impl LearnedAddresses {
    pub fn new(ports: usize, max: usize, ageing_ns: u64) -> Self {
        Self { seen: HashMap::new(), counts: vec![0; ports], max, ageing_ns, swept_ns: 0 }
    }

    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// Returns the port of `mac` if it was learned and has not expired.
    pub fn port_of(&self, now_ns: u64, mac: &Mac) -> Option<usize> {
        let seen = self.seen.get(mac)?;
        (now_ns.saturating_sub(seen.at_ns) < self.ageing_ns).then_some(seen.port)
    }

    /// Records that a frame from `mac` arrived on `port`.
    pub fn learn(&mut self, now_ns: u64, mac: Mac, port: usize) -> Learned {
        if let Some(seen) = self.seen.get_mut(&mac)
            && seen.port == port
        {
            seen.at_ns = now_ns;
            return Learned::Here;
        }
        if self.counts[port] >= self.max && !self.sweep(now_ns, port) {
            return Learned::Full;
        }
        self.counts[port] += 1;
        match self.seen.insert(mac, SeenAddress { port, at_ns: now_ns }) {
            Some(before) => {
                self.counts[before.port] -= 1;
                Learned::Moved
            }
            None => Learned::Here,
        }
    }

    /// Removes expired addresses, at most once in a tenth of the ageing time. Otherwise each
    /// address of a flood would cost a scan of the table. Returns whether there is room for another
    /// address of `port`.
    fn sweep(&mut self, now_ns: u64, port: usize) -> bool {
        if now_ns.saturating_sub(self.swept_ns) < self.ageing_ns / 10 {
            return false;
        }
        self.swept_ns = now_ns;
        let (counts, ageing_ns) = (&mut self.counts, self.ageing_ns);
        self.seen.retain(|_, seen| {
            let stays = now_ns.saturating_sub(seen.at_ns) < ageing_ns;
            counts[seen.port] -= usize::from(!stays);
            stays
        });
        self.counts[port] < self.max
    }

    /// Removes the addresses that were learned on `port`, which was removed.
    pub fn forget(&mut self, port: usize) {
        self.seen.retain(|_, seen| seen.port != port);
        self.counts[port] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGEING: u64 = 1000;

    fn mac(n: u8) -> Mac {
        [2, 0, 0, 0, 0, n]
    }

    #[test]
    fn an_address_is_where_it_was_seen_last_until_it_is_old() {
        let mut addresses = LearnedAddresses::new(2, 8, AGEING);
        assert_eq!(addresses.port_of(0, &mac(1)), None);
        assert_eq!(addresses.learn(0, mac(1), 0), Learned::Here);
        assert_eq!(addresses.learn(10, mac(1), 1), Learned::Moved);
        assert_eq!(addresses.port_of(AGEING, &mac(1)), Some(1));
        assert_eq!(addresses.learn(AGEING, mac(1), 1), Learned::Here);
        assert_eq!(addresses.port_of(2 * AGEING - 1, &mac(1)), Some(1));
        assert_eq!(addresses.port_of(2 * AGEING, &mac(1)), None);
    }

    #[test]
    fn a_flood_behind_one_port_leaves_the_others_their_room() {
        let mut addresses = LearnedAddresses::new(2, 4, AGEING);
        assert_eq!(addresses.learn(1, mac(100), 1), Learned::Here);
        for n in 0..50 {
            let expected = if n < 4 { Learned::Here } else { Learned::Full };
            assert_eq!(addresses.learn(2, mac(n), 0), expected, "{n}");
        }
        assert_eq!(addresses.learn(3, mac(101), 1), Learned::Here);
        assert_eq!((addresses.len(), &addresses.counts[..]), (6, &[4, 2][..]));
        // The addresses of the flood have expired, so a new one can be learned.
        assert_eq!(addresses.learn(2 + AGEING, mac(60), 0), Learned::Here);
        assert_eq!((addresses.len(), &addresses.counts[..]), (2, &[1, 1][..]));
    }

    #[test]
    fn a_port_that_goes_takes_its_addresses_along() {
        let mut addresses = LearnedAddresses::new(2, 4, AGEING);
        addresses.learn(0, mac(1), 0);
        addresses.learn(0, mac(2), 1);
        addresses.forget(0);
        assert_eq!((addresses.port_of(0, &mac(1)), addresses.port_of(0, &mac(2))), (None, Some(1)));
        assert_eq!(addresses.counts, [0, 1]);
    }
}
