//! Name resolution by nameservers over the stack.
//!
//! glibc's resolver opens its sockets inside libc, where this library cannot replace socket(2). DNS
//! queries would use the kernel's network, and be missing from `--pcap`. Therefore this library
//! configures glibc ([`services`]) to use the NSS service of this library instead of glibc's `dns`.
//! glibc itself still reads /etc/hosts, calls other services, applies hints, sorts addresses and
//! uses its cache (nsswitch.conf(5)).
//!
//! - [`towpath_dns`]: messages, resolv.conf(5), and which server to ask;
//! - `switch`: nsswitch.conf(5);
//! - `exchange`: sends questions to servers, by UDP and TCP;
//! - [`raw`]: whole messages, as res_query(3) returns them; `substitution`: the nameservers to use
//!   instead of those in /etc/resolv.conf;
//! - `aliases`: HOSTALIASES; `order`: sorts the addresses of a name.

mod aliases;
mod exchange;
mod order;
pub mod raw;
mod substitution;
mod switch;

use std::ffi::CString;
use std::net::IpAddr;

use towpath_dns::{A, AAAA, Conf, Name, NameLookup, PTR, Question, rcode};

use crate::{Posix, names, resolver};

pub(crate) use exchange::random;
pub use order::order;
pub use substitution::Substitution;
pub use towpath_dns::{FoundAddresses, ResolveError};

/// Maximum length in bytes of nsswitch.conf. The one of Debian has 500 bytes.
const SWITCH_MAX: usize = 16 << 10;

/// Address families that a host name lookup returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Look up IPv4 addresses only.
    V4,
    /// Look up IPv6 addresses only.
    V6,
    /// Look up both IPv4 and IPv6 addresses of the name.
    Both,
}

/// Returns the services that glibc must use to look up hosts. None: glibc's configuration needs no
/// change, because the run has no nameserver, or nsswitch.conf(5) has no service that asks
/// nameservers.
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

/// Looks up the addresses of a host name, with the search domains of res_search(3).
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
        Family::Both => &[A, AAAA],
    };
    let alias = if name.contains('.') { None } else { aliases::of(name.as_bytes()) };
    // An alias from HOSTALIASES is looked up without search domains.
    let names = match alias.and_then(|alias| String::from_utf8(alias).ok()) {
        Some(alias) => Name::new(alias.as_bytes(), b"").into_iter().collect(),
        None => conf.candidates(name),
    };
    let mut lookup = NameLookup::new(&conf, names, kinds);
    loop {
        let questions = lookup.next_questions()?;
        let answers = exchange::ask(posix, &conf, &questions);
        if let Some(result) = lookup.on_answers(answers) {
            return result;
        }
    }
}

/// Looks up the host names of an IP address. The first is the canonical name.
///
/// # Errors
/// See [`ResolveError`].
pub fn hosts(posix: &'static Posix, ip: IpAddr) -> Result<FoundAddresses, ResolveError> {
    let conf = conf_of(posix)?;
    let question = Question { name: Name::of_address(ip), kind: PTR };
    let answer = exchange::ask(posix, &conf, &[question]).pop().flatten();
    let answer = answer.filter(|answer| answer.code != rcode::SERVER_FAILURE);
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
