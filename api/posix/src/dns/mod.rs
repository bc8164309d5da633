//! Names by nameservers that are asked over the stack.
//!
//! glibc's resolver makes its sockets inside libc, where nothing can come between. Its questions
//! would leave by the kernel's network, past `--pcap`. So glibc is told
//! ([`services`]) to ask a service of this library in the place of its own `dns`. Files, other
//! services, hints, order and memory of answers stay glibc's (nsswitch.conf(5)).
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

/// Longest nsswitch.conf that is read. Debian's has 500 bytes.
const SWITCH_MAX: usize = 16 << 10;

/// Why a name has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResolveError {
    /// HOST_NOT_FOUND: there is no such name.
    NotFound,
    /// NO_DATA: the name has other records.
    NoData,
    /// TRY_AGAIN: no nameserver had an answer.
    TryAgain,
    /// The run has no nameserver.
    Unavailable,
}

/// Addresses of a name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundAddresses {
    /// The canonical name.
    pub name: String,
    /// Names that led to the canonical one.
    pub aliases: Vec<String>,
    /// Addresses, in the nameserver's order.
    pub addresses: Vec<IpAddr>,
    /// Seconds for which the answer holds.
    pub ttl: u32,
}

/// Families of the addresses that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4 alone.
    V4,
    /// IPv6 alone.
    V6,
    /// IPv4 and IPv6.
    Both,
}

/// The services that glibc is to ask for hosts. None: all stays as it is, because the run has no
/// nameserver, or nsswitch.conf(5) names no service that asks one.
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

/// Addresses of a name, as res_search(3) looks for it.
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
    // An alias of the user's is no name to search for.
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
        // A name with other records may have addresses in another domain, as with glibc.
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

/// Names of an address, the first of them its own.
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

/// The addresses of all answers. A missing one does no harm where another has addresses.
fn of_answers(answers: Vec<Option<DnsAnswer>>) -> Result<FoundAddresses, ResolveError> {
    let missing = answers.iter().any(Option::is_none);
    let there: Vec<_> = answers.into_iter().flatten().collect();
    let nothing = there.iter().all(|answer| answer.code == rcode::NAME_ERROR);
    let mut found = FoundAddresses { ttl: u32::MAX, ..FoundAddresses::default() };
    for mut answer in there {
        // An answer that leads to what is no name of a host is left out.
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
