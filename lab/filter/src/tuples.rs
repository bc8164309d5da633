//! Tuple space search with priorities (Srinivasan 1999; Open vSwitch), for comparison with our
//! lists.
//!
//! Each hash table has the rules with the same two prefix lengths. A search queries the tables in
//! the order of their best rules, and ends when no further table can have a better rule. Other
//! conditions of a rule are compared one by one.

use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

use hashbrown::HashMap;
use towpath_filter::{AddressMatch, Fields, PortMatch, Rule, RuleList};

/// Masks of source and destination address, as 128 bits each.
type Masks = (u128, u128);
type Table = HashMap<Masks, Vec<(u32, Rule)>, BuildHasherDefault<Multiply>>;

pub struct Tuples {
    /// For each tuple: its best rule, its masks, and its rules.
    tuples: Vec<(u32, Masks, Table)>,
}

impl Tuples {
    pub fn new(list: &RuleList) -> Self {
        let mut tuples: Vec<(u32, Masks, Table)> = Vec::new();
        let mut places = HashMap::<Masks, usize, BuildHasherDefault<Multiply>>::default();
        for (order, rule) in (0..).zip(list.iter()) {
            let ((src, src_mask), (dst, dst_mask)) = (bits_of(&rule.src), bits_of(&rule.dst));
            let masks = (src_mask, dst_mask);
            let place = *places.entry(masks).or_insert_with(|| {
                tuples.push((order, masks, Table::default()));
                tuples.len() - 1
            });
            tuples[place].2.entry((src, dst)).or_default().push((order, rule.clone()));
        }
        tuples.sort_by_key(|tuple| tuple.0);
        Self { tuples }
    }

    pub fn len(&self) -> usize {
        self.tuples.len()
    }

    pub fn find(&self, fields: &Fields) -> Option<u32> {
        let (src, dst) = (bits(fields.src), bits(fields.dst));
        let mut found = None;
        for (best, (src_mask, dst_mask), table) in &self.tuples {
            if found.is_some_and(|found| found < *best) {
                break;
            }
            let Some(rules) = table.get(&(src & src_mask, dst & dst_mask)) else { continue };
            let first = rules.iter().find(|(_, rule)| is_met(rule, fields));
            let first = first.map(|(order, _)| *order);
            found = [found, first].into_iter().flatten().min();
        }
        found
    }
}

fn is_met(rule: &Rule, fields: &Fields) -> bool {
    let within = |ports: &Option<PortMatch>, port: Option<u16>| {
        let is_in = |port: &u16| {
            let mut ranges = ports.iter().flat_map(PortMatch::ranges);
            ranges.any(|it| (it.first..=it.last).contains(port))
        };
        ports.is_none() || port.as_ref().is_some_and(is_in)
    };
    rule.protocol.is_none_or(|protocol| protocol == fields.protocol)
        && within(&rule.sport, fields.ports.map(|ports| ports.0))
        && within(&rule.dport, fields.ports.map(|ports| ports.1))
}

fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Returns the first address and the mask of a condition of one prefix.
fn bits_of(prefixes: &Option<AddressMatch>) -> (u128, u128) {
    let prefix = prefixes.as_ref().and_then(|prefixes| prefixes.prefixes().first());
    let Some(prefix) = prefix else { return (0, 0) };
    let (first, last) = (bits(prefix.network()), bits(prefix.last()));
    (first, !(first ^ last))
}

/// Fast hash without protection against chosen keys.
#[derive(Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u128(&mut self, number: u128) {
        self.write_u64(number as u64);
        self.write_u64((number >> 64) as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}
