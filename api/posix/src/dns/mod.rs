//! Name resolution by nameservers over the stack.
//!
//! glibc's resolver opens its sockets inside libc, where they cannot be interposed. Its questions
//! would use the kernel's network, and be missing from `--pcap`. Therefore glibc is configured
//! ([`services`]) to use a service of this library instead of its own `dns`. Files, other services,
//! hints, order and the cache remain glibc's (nsswitch.conf(5)).
//!
//! - `message`: questions and answers; `conf`: resolv.conf(5); `switch`: nsswitch.conf(5);
//! - `exchange`: asking servers, by UDP and TCP;
//! - [`raw`]: whole messages, as res_query(3) gives them; `substitution`: their nameservers;
//! - `aliases`: HOSTALIASES; `order`: which address of a name comes first.

mod aliases;
mod conf;
mod exchange;
mod message;
mod order;
pub mod raw;
mod substitution;
mod switch;

use std::ffi::CString;
use std::net::IpAddr;

use conf::Conf;
use message::{A, AAAA, DnsAnswer, Name, PTR, Question, rcode};

use crate::{Posix, names, resolver};

pub(crate) use exchange::random;
pub use order::order;
pub use substitution::Substitution;

/// Maximum length in bytes of nsswitch.conf. Debian's has 500 bytes.
const SWITCH_MAX: usize = 16 << 10;

/// Error of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResolveError {
    /// The name does not exist (HOST_NOT_FOUND).
    NotFound,
    /// The name exists, but has no records of this type (NO_DATA).
    NoData,
    /// No nameserver answered (TRY_AGAIN).
    TryAgain,
    /// The run has no nameserver.
    Unavailable,
}

/// Result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundAddresses {
    /// Canonical name.
    pub name: String,
    /// Other names, which CNAMEs map to the canonical one.
    pub aliases: Vec<String>,
    /// Addresses, in the nameserver's order.
    pub addresses: Vec<IpAddr>,
    /// TTL in seconds.
    pub ttl: u32,
}

/// Address families of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// IPv4 and IPv6.
    Both,
}

/// Returns the services that glibc must use for hosts. None: no change, because the run has no
/// nameserver, or nsswitch.conf(5) contains no service that asks nameservers.
pub fn services(posix: &'static Posix) -> Option<CString> {
    if !posix.is_active() {
        return None;
    }
    resolver::text(posix)?;
    let mut file = vec![0; SWITCH_MAX];
    let text = match resolver::read(c"/etc/nsswitch.conf", &mut file) {
        Ok(len) => String::from_utf8_lossy(&file[..len?]).into_owned(),
        Err(_) => String::new(),
    };
    CString::new(switch::hosts(&text)?).ok()
}

/// Looks up the addresses of a name, with the search domains of res_search(3).
///
/// # Errors
/// See [`ResolveError`].
pub fn addresses(
    posix: &'static Posix,
    name: &str,
    family: Family,
) -> Result<FoundAddresses, ResolveError> {
    let conf = conf_of(posix)?;
    let kinds = match family {
        Family::V4 => &[A][..],
        Family::V6 => &[AAAA],
        Family::Both if conf.no_aaaa => &[A],
        Family::Both => &[A, AAAA],
    };
    let alias = if name.contains('.') { None } else { aliases::of(name.as_bytes()) };
    let alias = alias.and_then(|alias| String::from_utf8(alias).ok());
    // An alias from HOSTALIASES is looked up without search domains.
    let (name, domains) = match &alias {
        Some(alias) => (alias.as_str(), vec![""]),
        None => (name, conf::candidates(&conf, name)),
    };
    let mut worst = ResolveError::NotFound;
    for domain in domains {
        let Some(wire) = Name::new(name.as_bytes(), domain.as_bytes()) else { continue };
        let questions: Vec<_> =
            kinds.iter().map(|&kind| Question { name: wire.clone(), kind }).collect();
        let answers = exchange::ask(posix, &conf, &questions);
        let found = of_answers(answers);
        // As glibc does, try the next domain if the name has only other records.
        match found {
            Ok(found) => return Ok(found),
            Err(ResolveError::NoData) if worst == ResolveError::NotFound => {
                worst = ResolveError::NoData
            }
            Err(ResolveError::TryAgain) => return Err(ResolveError::TryAgain),
            Err(_) => {}
        }
    }
    Err(worst)
}

/// Looks up the names of an address. The first is the canonical name.
///
/// # Errors
/// See [`ResolveError`].
pub fn hosts(posix: &'static Posix, ip: IpAddr) -> Result<FoundAddresses, ResolveError> {
    let conf = conf_of(posix)?;
    let question = Question { name: Name::of_address(ip), kind: PTR };
    let answer = exchange::ask(posix, &conf, &[question]).pop().flatten();
    let answer = answer.ok_or(ResolveError::TryAgain)?;
    let mut hosts = answer.hosts.into_iter();
    match hosts.next() {
        Some(name) => {
            let (aliases, ttl) = (hosts.collect(), answer.ttl);
            Ok(FoundAddresses { name, aliases, addresses: vec![ip], ttl })
        }
        None if answer.code == rcode::NO_ERROR => Err(ResolveError::NoData),
        None => Err(ResolveError::NotFound),
    }
}

fn conf_of(posix: &'static Posix) -> Result<Conf, ResolveError> {
    let text = resolver::text(posix).ok_or(ResolveError::Unavailable)?;
    let hostname = names::own(posix);
    let conf = Conf::new(&text, hostname.as_deref(), |name| std::env::var(name).ok());
    if conf.servers.is_empty() { Err(ResolveError::Unavailable) } else { Ok(conf) }
}

/// Merges the addresses of all answers. A missing answer is no error if another one has addresses.
fn of_answers(answers: Vec<Option<DnsAnswer>>) -> Result<FoundAddresses, ResolveError> {
    let missing = answers.iter().any(Option::is_none);
    let there: Vec<_> = answers.into_iter().flatten().collect();
    let nothing = there.iter().all(|answer| answer.code == rcode::NAME_ERROR);
    let mut found = FoundAddresses { ttl: u32::MAX, ..FoundAddresses::default() };
    for mut answer in there {
        // Skip an answer whose canonical name is not a valid host name.
        let Some(name) = answer.names.pop().filter(|_| !answer.addresses.is_empty()) else {
            continue;
        };
        if found.addresses.is_empty() {
            (found.name, found.aliases) = (name, answer.names);
        }
        found.addresses.extend(answer.addresses);
        found.ttl = found.ttl.min(answer.ttl);
    }
    match (found.addresses.is_empty(), missing, nothing) {
        (false, ..) => Ok(found),
        (true, true, _) => Err(ResolveError::TryAgain),
        (true, false, true) => Err(ResolveError::NotFound),
        (true, false, false) => Err(ResolveError::NoData),
    }
}
