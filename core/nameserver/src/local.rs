//! Names that the forwarder itself knows: static ones, and those of DHCP leases.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::{BTreeMap, BTreeSet};

use towpath_dns::{A, AAAA, Name, PTR};
use towpath_tcp::Instant;

use crate::query::{AskedQuestion, CLASS_IN};
use crate::records::{HEADER_LEN, kind};
use crate::zones::{FoundZone, LocalZones, ZoneKind};

/// Time to live in seconds of local names, and of their absence. Names of leases change.
const NAME_TTL_S: u32 = 60;
/// Time to live in seconds of absent names in zones that are always empty (RFC 6303 §3).
const EMPTY_TTL_S: u32 = 10_800;
/// Names that no lease can have, because programs look them up to find their proxy or gateway
/// (VU#598349).
const REFUSED_NAMES: [&[u8]; 2] = [b"wpad", b"isatap"];
/// Maximum number of answers to a query for a local name.
const ANSWERS_MAX: usize = 32;

/// Name of a host with a DHCP lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedName {
    /// Host name that the client sent.
    pub host_name: String,
    /// Address of the lease.
    pub address: Ipv4Addr,
    /// Time at which the lease ends.
    pub until: Instant,
}

/// A local address or name.
#[derive(Debug, Clone)]
struct LocalEntry<T> {
    value: T,
    /// Time at which the entry ends; `None` for a static one.
    until: Option<Instant>,
}

/// Names that the forwarder itself knows.
#[derive(Debug, Default)]
pub struct LocalNames {
    domain: Option<Name>,
    fixed: NameTable,
    leased: NameTable,
}

/// Names and addresses of one origin. Names are encoded in lower case.
#[derive(Debug, Default)]
struct NameTable {
    addresses: BTreeMap<Box<[u8]>, Vec<LocalEntry<IpAddr>>>,
    names: BTreeMap<Box<[u8]>, LocalEntry<Name>>,
    /// Names above those of `addresses`.
    parents: BTreeSet<Box<[u8]>>,
}

impl NameTable {
    /// Adds a name. The first name of an address is that of its reverse lookup.
    fn add(&mut self, name: &Name, address: IpAddr, until: Option<Instant>) {
        let name_key = lower(name);
        let mut at = 0;
        while let Some(len) = name_key.get(at).filter(|len| **len > 0) {
            at += 1 + usize::from(*len);
            self.parents.insert(Box::from(&name_key[at..]));
        }
        let entries = self.addresses.entry(name_key).or_default();
        if entries.len() < ANSWERS_MAX && entries.iter().all(|known| known.value != address) {
            entries.push(LocalEntry { value: address, until });
        }
        let reverse = LocalEntry { value: name.clone(), until };
        self.names.entry(lower(&Name::of_address(address))).or_insert(reverse);
    }
}

fn lower(name: &Name) -> Box<[u8]> {
    name.wire().to_ascii_lowercase().into_boxed_slice()
}

impl LocalNames {
    /// Creates names in a domain. Each entry of `fixed` is an address with a name; a name without a
    /// dot is in the domain. Invalid names are ignored.
    pub fn new(domain: Option<Name>, fixed: &[(IpAddr, String)]) -> Self {
        let suffix = domain.clone();
        let mut names = Self { domain, ..Self::default() };
        for (address, text) in fixed {
            let name = match (&suffix, text.trim_end_matches('.').contains('.')) {
                (Some(domain), false) => joined(text.as_bytes(), domain),
                _ => Name::new(text.as_bytes(), b""),
            };
            if let Some(name) = name {
                names.fixed.add(&name, *address, None);
            }
        }
        names
    }

    /// Returns the domain of local names.
    pub fn domain(&self) -> Option<&Name> {
        self.domain.as_ref()
    }

    /// Replaces the names of leases. If several leases have one name, the one that ends last
    /// counts.
    pub fn set_leases(&mut self, mut leases: Vec<LeasedName>) {
        let Some(domain) = self.domain.clone() else { return };
        leases.sort_by_key(|lease| std::cmp::Reverse(lease.until));
        let mut leased = NameTable::default();
        for LeasedName { host_name, address, until } in &leases {
            // A client may send its name with the domain that it had elsewhere.
            let label = host_name.split('.').next().unwrap_or_default().as_bytes();
            let Some(name) = lease_name(label, &domain) else { continue };
            let key = lower(&name);
            if !leased.addresses.contains_key(&key) && !self.fixed.addresses.contains_key(&key) {
                leased.add(&name, (*address).into(), Some(*until));
            }
        }
        self.leased = leased;
    }

    /// Answers a question for a local name, or in a local zone. Returns `None` if the question must
    /// be sent to an upstream server.
    pub fn answer(
        &self,
        now: Instant,
        zones: &LocalZones,
        question: &AskedQuestion,
    ) -> Option<LocalAnswer> {
        let name = question.name().to_ascii_lowercase();
        let known = self.records(now, &name, question);
        if let Some(records) = &known
            && !records.is_empty()
        {
            return Some(LocalAnswer::new(question, records));
        }
        let zone = zones.find(&name);
        let exists = known.is_some();
        match zone {
            Some(zone) if zone.kind == ZoneKind::Unsigned && question.kind() == kind::DS => None,
            Some(zone) if zone.kind == ZoneKind::Localhost => {
                let records = loopback(question.kind());
                Some(match records.is_empty() {
                    true => LocalAnswer::negative(question, zone, true, EMPTY_TTL_S),
                    false => LocalAnswer::new(question, &records),
                })
            }
            Some(zone) => {
                let is_own = self.domain.as_ref().is_some_and(|own| *lower(own) == name[zone.at..]);
                let ttl_s = if is_own { NAME_TTL_S } else { EMPTY_TTL_S };
                // The name of the zone itself exists, and so does the parent of an existing name.
                let exists = exists || zone.at == 0 || self.is_parent(&name);
                Some(LocalAnswer::negative(question, zone, exists, ttl_s))
            }
            // A static name outside of local zones has no other records.
            None if exists => {
                let zone = FoundZone { kind: ZoneKind::Empty, at: 0 };
                Some(LocalAnswer::negative(question, zone, true, NAME_TTL_S))
            }
            None => None,
        }
    }

    /// Returns the records of a local name, or `None` if the name does not exist.
    fn records(
        &self,
        now: Instant,
        name: &[u8],
        question: &AskedQuestion,
    ) -> Option<Vec<LocalRecord>> {
        let is_wanted = |found: u16| question.kind() == found || question.kind() == kind::ANY;
        let (mut records, mut exists) = (Vec::new(), false);
        for table in [&self.fixed, &self.leased] {
            for entry in table.addresses.get(name).into_iter().flatten() {
                let Some(ttl_s) = entry.ttl_s(now) else { continue };
                exists = true;
                let record = LocalRecord::of_address(entry.value, ttl_s);
                records.extend(is_wanted(record.kind).then_some(record));
            }
            let Some(entry) = table.names.get(name) else { continue };
            let Some(ttl_s) = entry.ttl_s(now) else { continue };
            if is_wanted(PTR) && records.iter().all(|it| it.kind != PTR) {
                records.push(LocalRecord { kind: PTR, ttl_s, data: entry.value.wire().to_vec() });
            }
            exists = true;
        }
        exists.then_some(records)
    }

    /// Returns whether a local name is below `name`.
    fn is_parent(&self, name: &[u8]) -> bool {
        [&self.fixed, &self.leased].iter().any(|table| table.parents.contains(name))
    }
}

impl<T> LocalEntry<T> {
    /// Returns the time to live in seconds; `None` if the entry has ended.
    fn ttl_s(&self, now: Instant) -> Option<u32> {
        let Some(until) = self.until else { return Some(NAME_TTL_S) };
        let left_s = until.since(now).as_secs().min(NAME_TTL_S.into());
        (until > now).then_some(left_s as u32)
    }
}

/// Returns the name of a lease, if its host name is valid.
fn lease_name(label: &[u8], domain: &Name) -> Option<Name> {
    let is_valid = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    let is_refused = REFUSED_NAMES.iter().any(|refused| label.eq_ignore_ascii_case(refused));
    let is_host = !label.is_empty()
        && label.iter().all(is_valid)
        && !label.starts_with(b"-")
        && !label.ends_with(b"-");
    (is_host && !is_refused).then(|| joined(label, domain))?
}

/// Returns the name `text` in a domain.
fn joined(text: &[u8], domain: &Name) -> Option<Name> {
    Name::new(text, b"")?.within(domain)
}

/// Returns the loopback address of a record type.
fn loopback(asked: u16) -> Vec<LocalRecord> {
    let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(core::net::Ipv6Addr::LOCALHOST)];
    let records = addresses.map(|address| LocalRecord::of_address(address, EMPTY_TTL_S));
    records.into_iter().filter(|it| it.kind == asked || asked == kind::ANY).collect()
}

/// A record whose owner is the name of the question.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LocalRecord {
    kind: u16,
    ttl_s: u32,
    data: Vec<u8>,
}

impl LocalRecord {
    fn of_address(address: IpAddr, ttl_s: u32) -> Self {
        match address {
            IpAddr::V4(ip) => Self { kind: A, ttl_s, data: ip.octets().to_vec() },
            IpAddr::V6(ip) => Self { kind: AAAA, ttl_s, data: ip.octets().to_vec() },
        }
    }

    /// Appends the record. `owner_at` is the offset of its owner in the message.
    fn put(&self, to: &mut Vec<u8>, owner_at: usize) {
        // The question is in the first 16 KiB, so that a pointer reaches it.
        to.extend((0xc000 | owner_at as u16).to_be_bytes());
        to.extend(self.kind.to_be_bytes());
        to.extend(CLASS_IN.to_be_bytes());
        to.extend(self.ttl_s.to_be_bytes());
        to.extend((self.data.len() as u16).to_be_bytes());
        to.extend(&self.data);
    }
}

/// A local answer in the form in which the cache stores answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalAnswer {
    /// Message without an OPT record.
    pub message: Vec<u8>,
    /// Response code.
    pub code: u16,
}

impl LocalAnswer {
    fn new(question: &AskedQuestion, records: &[LocalRecord]) -> Self {
        let mut message = vec![0; HEADER_LEN];
        message[5] = 1;
        message[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
        message.extend(&question.section);
        records.iter().for_each(|record| record.put(&mut message, HEADER_LEN));
        Self { message, code: 0 }
    }

    /// Returns an answer without data, with the SOA record that RFC 6303 §3 proposes, so that
    /// clients cache it.
    fn negative(question: &AskedQuestion, zone: FoundZone, exists: bool, ttl_s: u32) -> Self {
        let mut answer = Self::new(question, &[]);
        answer.code = if exists { 0 } else { towpath_dns::rcode::NAME_ERROR.into() };
        answer.message[9] = 1;
        let mut data = question.name()[zone.at..].to_vec();
        data.extend(b"\x06nobody\x07invalid\x00");
        for number in [1, 3600, 1200, 604_800, ttl_s] {
            data.extend(number.to_be_bytes());
        }
        let soa = LocalRecord { kind: kind::SOA, ttl_s, data };
        soa.put(&mut answer.message, HEADER_LEN + zone.at);
        answer
    }
}
