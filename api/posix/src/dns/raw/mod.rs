//! res_query(3) and its variants: return whole messages of nameservers to programs, as glibc does.
//!
//! - `question`: messages to servers, and checks whether an answer matches a question;
//! - `send`: sends them to servers, by UDP and TCP.
//!
//! The settings come from the program's `struct __res_state`, which the crate in `api/symbols`
//! reads.

mod question;
mod send;

use std::net::SocketAddr;
use std::time::Duration;

use super::{aliases, exchange};
use crate::{Errno, Posix};

pub use send::{SendOutcome, send};

/// Maximum length in bytes of a DNS name as text, with escapes (MAXDNAME of arpa/nameser.h).
const TEXT_MAX: usize = 1025;

/// Options of a resolver, numbered as RES_* of resolv.h.
pub mod flag {
    /// RES_INIT: the resolver's state is initialized.
    pub const INIT: u64 = 1;
    /// RES_USEVC: send all questions over TCP.
    pub const USE_VC: u64 = 8;
    /// RES_IGNTC: accept truncated answers, without a retry over TCP.
    pub const IGNORE_TRUNCATION: u64 = 0x20;
    /// RES_RECURSE: ask nameservers for recursive lookups.
    pub const RECURSE: u64 = 0x40;
    /// RES_DEFNAMES: look up names without dots in the search domains.
    pub const DEFAULT_NAMES: u64 = 0x80;
    /// RES_DNSRCH: look up names in all search domains.
    pub const SEARCH: u64 = 0x200;
    /// RES_NOALIASES: ignore the aliases in the HOSTALIASES file.
    pub const NO_ALIASES: u64 = 0x1000;
    /// RES_ROTATE: ask a different server first each time.
    pub const ROTATE: u64 = 0x4000;
    /// RES_USE_EDNS0: add an OPT record to questions.
    pub const USE_EDNS0: u64 = 0x10_0000;
    /// RES_USE_DNSSEC: set the DO bit (DNSSEC OK) in the OPT record.
    pub const USE_DNSSEC: u64 = 0x80_0000;
    /// RES_NOTLDQUERY: do not look up names without dots as top-level domains.
    pub const NO_TOP_LEVEL: u64 = 0x100_0000;
    /// RES_TRUSTAD: set the AD bit (authentic data) in questions, and keep it in answers.
    pub const TRUST_AD: u64 = 0x400_0000;
}

/// Response codes (RCODE) of DNS messages, RFC 1035 §4.1.1.
mod code {
    pub const NO_ERROR: u8 = 0;
    pub const FORMAT_ERROR: u8 = 1;
    pub const SERVER_FAILURE: u8 = 2;
    pub const NAME_ERROR: u8 = 3;
    pub const NOT_IMPLEMENTED: u8 = 4;
    pub const REFUSED: u8 = 5;
}

/// Values of `h_errno` (netdb.h).
pub mod h_errno {
    /// HOST_NOT_FOUND: the name does not exist.
    pub const HOST_NOT_FOUND: i32 = 1;
    /// TRY_AGAIN: no server answered.
    pub const TRY_AGAIN: i32 = 2;
    /// NO_RECOVERY: the lookup failed, and another attempt would fail, too.
    pub const NO_RECOVERY: i32 = 3;
    /// NO_DATA: the name exists, but has no records of the requested type.
    pub const NO_DATA: i32 = 4;
}

/// Settings of a resolver, read from a program's `struct __res_state`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StubSettings {
    /// Addresses and ports of the nameservers.
    pub servers: Vec<SocketAddr>,
    /// Domains of the search list, which are appended to host names.
    pub domains: Vec<Vec<u8>>,
    /// Options of the resolver: bits of [`flag`].
    pub flags: u64,
    /// Minimum number of dots with which a name is looked up as it is before the search domains are
    /// tried (`ndots` of resolv.conf(5)).
    pub ndots: usize,
    /// Time to wait for the answer of the first server (`retrans`).
    pub timeout: Duration,
    /// Maximum number of times that each question is sent to all servers (`retry`).
    pub attempts: u32,
    /// Whether an answer whose RCODE reports a failure is returned to the program (`pfcode`).
    pub takes_failures: bool,
}

impl StubSettings {
    fn has(&self, flags: u64) -> bool {
        self.flags & flags != 0
    }

    /// Returns the time to wait for an answer of the server with the index `place`, as glibc does.
    fn patience(&self, place: usize) -> Duration {
        let shift = place.min(8) as u32;
        let count = if place == 0 { 1 } else { self.servers.len() as u32 };
        (self.timeout * (1 << shift) / count.max(1)).max(Duration::from_secs(1))
    }
}

/// Error of a DNS question for which there is no answer to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanswered {
    /// Value to which `h_errno` is set, see [`h_errno`].
    pub h_errno: i32,
    /// Value to which `errno` is set. None: it is not changed.
    pub errno: Option<i32>,
}

impl Unanswered {
    fn new(h_errno: i32, errno: impl Into<Option<i32>>) -> Self {
        Self { h_errno, errno: errno.into() }
    }
}

/// Result of a DNS question.
#[derive(Debug)]
pub struct Asked {
    /// The answer, or else the last message of a server that reported a failure. Empty if no server
    /// sent any message.
    pub message: Vec<u8>,
    /// Length in bytes of the answer, which the C function returns to the program.
    pub result: Result<usize, Unanswered>,
}

impl Asked {
    fn failed(h_errno: i32, errno: impl Into<Option<i32>>) -> Self {
        Self { message: Vec::new(), result: Err(Unanswered::new(h_errno, errno)) }
    }

    fn is_server_failure(&self) -> bool {
        self.message.get(3).is_some_and(|byte| byte & 15 == code::SERVER_FAILURE)
    }
}

/// A program's DNS question without its name, and the settings of the program's resolver. The name
/// is separate, because a search tries several names.
#[derive(Debug)]
pub struct StubResolver<'a> {
    /// State of this library in the process.
    pub posix: &'static Posix,
    /// Settings of the program's resolver, such as its nameservers.
    pub settings: &'a StubSettings,
    /// DNS class of the requested records.
    pub class: i32,
    /// DNS type of the requested records.
    pub kind: i32,
    /// Size of the program's answer buffer in bytes.
    pub room: usize,
}

impl StubResolver<'_> {
    /// Implements res_query(3).
    pub fn query(&self, name: &[u8]) -> Asked {
        let (settings, room) = (self.settings, self.room);
        let id = exchange::random();
        let Some(message) =
            question::message(id, name, self.class, self.kind, settings.flags, room)
        else {
            return Asked::failed(h_errno::NO_RECOVERY, libc::EMSGSIZE);
        };
        let SendOutcome { message, result } = send(self.posix, settings, &message, room);
        let result = match result {
            Ok(len) => judge(&message).map(|()| len),
            Err(Errno(errno)) => Err(Unanswered::new(h_errno::TRY_AGAIN, errno)),
        };
        Asked { message, result }
    }

    /// Implements res_querydomain(3).
    pub fn query_domain(&self, name: &[u8], domain: Option<&[u8]>) -> Asked {
        let len = name.len() + domain.map_or(0, |domain| domain.len() + 1);
        // As in glibc, only res_query accepts an empty name.
        if len >= TEXT_MAX - 1 || (domain.is_none() && name.is_empty()) {
            return Asked::failed(h_errno::NO_RECOVERY, None);
        }
        match domain {
            Some(domain) => self.query(&[name, b".", domain].concat()),
            None => self.query(name),
        }
    }

    /// Implements res_search(3).
    pub fn search(&self, name: &[u8]) -> Asked {
        let dots = name.iter().filter(|byte| **byte == b'.').count();
        let is_whole = name.ends_with(b".");
        let may_be_alias = dots == 0 && !self.settings.has(flag::NO_ALIASES);
        if let Some(alias) = may_be_alias.then(|| aliases::of(name)).flatten() {
            return self.query(&alias);
        }
        let mut as_it_is = None;
        if is_whole || dots >= self.settings.ndots {
            let asked = self.query_domain(name, None);
            if is_whole || asked.result.is_ok() {
                return asked;
            }
            as_it_is = Some(asked);
        }
        let wanted = if dots == 0 { flag::DEFAULT_NAMES } else { flag::SEARCH };
        let searches = !is_whole && self.settings.has(wanted);
        let errno = as_it_is.as_ref().and_then(|asked| asked.result.err()?.errno);
        let mut search = SearchFailures { errno, ..SearchFailures::default() };
        if searches && let Some(found) = self.search_domains(name, &mut search) {
            return found;
        }
        let skips_top = self.settings.has(flag::NO_TOP_LEVEL) && dots == 0 && search.has_searched;
        if as_it_is.is_none() && !search.has_root && !skips_top {
            let asked = self.query_domain(name, None);
            if asked.result.is_ok() {
                return asked;
            }
            search.errno = asked.result.err().and_then(|why| why.errno).or(search.errno);
            search.last = Some(asked);
        }
        search.ended(as_it_is)
    }

    /// Looks up `name` in each search domain. Returns `None` if the search must continue with the
    /// name itself.
    fn search_domains(&self, name: &[u8], search: &mut SearchFailures) -> Option<Asked> {
        for domain in &self.settings.domains {
            search.has_searched = true;
            let domain = domain.strip_prefix(b".").unwrap_or(domain);
            search.has_root |= domain.is_empty();
            let mut asked = self.query_domain(name, Some(domain));
            let Err(why) = &mut asked.result else { return Some(asked) };
            if why.errno == Some(libc::ECONNREFUSED) {
                why.h_errno = h_errno::TRY_AGAIN;
                return Some(asked);
            }
            search.errno = why.errno.or(search.errno);
            let goes_on = match why.h_errno {
                h_errno::NO_DATA => {
                    search.has_nodata = true;
                    true
                }
                h_errno::HOST_NOT_FOUND => true,
                h_errno::TRY_AGAIN => asked.is_server_failure(),
                _ => false,
            };
            search.has_server_failure |= goes_on && asked.is_server_failure();
            search.last = Some(asked);
            if !goes_on || !self.settings.has(flag::SEARCH) {
                break;
            }
        }
        None
    }
}

/// Failures of the lookups of one search.
#[derive(Default)]
struct SearchFailures {
    has_searched: bool,
    has_root: bool,
    has_nodata: bool,
    has_server_failure: bool,
    /// The last value to which a question of this search set errno.
    errno: Option<i32>,
    last: Option<Asked>,
}

impl SearchFailures {
    /// Chooses the failure to return after a search in several domains. Returns `as_it_is`, the
    /// failure for the name without a domain, if that lookup came first. Otherwise returns the most
    /// specific failure.
    fn ended(self, as_it_is: Option<Asked>) -> Asked {
        let why = |asked: &Option<Asked>| asked.as_ref().and_then(|asked| asked.result.err());
        let (first, last) = (why(&as_it_is), why(&self.last));
        let h_errno = match (first, last) {
            (Some(first), _) => first.h_errno,
            _ if self.has_nodata => h_errno::NO_DATA,
            _ if self.has_server_failure => h_errno::TRY_AGAIN,
            (None, Some(last)) => last.h_errno,
            (None, None) => h_errno::HOST_NOT_FOUND,
        };
        let asked = self.last.or(as_it_is);
        let message = asked.map(|asked| asked.message).unwrap_or_default();
        Asked { message, result: Err(Unanswered::new(h_errno, self.errno)) }
    }
}

/// Checks an answer: returns an error if it contains no records or reports a failure.
fn judge(message: &[u8]) -> Result<(), Unanswered> {
    let h_errno = match message[3] & 15 {
        code::NO_ERROR if message[6..8] != [0, 0] => return Ok(()),
        code::NO_ERROR => h_errno::NO_DATA,
        code::NAME_ERROR => h_errno::HOST_NOT_FOUND,
        code::SERVER_FAILURE => h_errno::TRY_AGAIN,
        _ => h_errno::NO_RECOVERY,
    };
    Err(Unanswered::new(h_errno, None))
}
