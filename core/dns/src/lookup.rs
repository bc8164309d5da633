//! The lookup of a name's addresses.

use std::net::IpAddr;
use std::vec;

use crate::conf::Conf;
use crate::message::{AAAA, DnsAnswer, Name, Question, rcode};

/// Error of a name lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResolveError {
    /// The name does not exist (HOST_NOT_FOUND).
    NotFound,
    /// The name exists, but has no records of the requested type (NO_DATA).
    NoData,
    /// No nameserver gave an answer; a later lookup may succeed (TRY_AGAIN).
    TryAgain,
    /// No nameserver is configured.
    Unavailable,
}

/// Result of a name lookup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundAddresses {
    /// Canonical name of the host.
    pub name: String,
    /// Other names of the host, which CNAME records map to the canonical name.
    pub aliases: Vec<String>,
    /// Addresses of the host, in the order of the nameserver's answer.
    pub addresses: Vec<IpAddr>,
    /// Time to live of the addresses in seconds.
    pub ttl: u32,
}

/// Lookup of the addresses of a name. Like res_search(3), it looks up one candidate name after
/// another until one has addresses.
///
/// Call [`Self::next_questions`], and pass the answers to [`Self::on_answers`]. Repeat this until
/// either call returns the result.
#[derive(Debug)]
pub struct NameLookup {
    candidates: vec::IntoIter<Name>,
    kinds: Vec<u16>,
    worst: ResolveError,
}

impl NameLookup {
    /// Creates the lookup of records of the types `kinds` ([`A`](crate::A), [`AAAA`]). `names` are
    /// the candidate names, as returned by [`Conf::candidates`].
    pub fn new(conf: &Conf, names: Vec<Name>, kinds: &[u16]) -> Self {
        let mut kinds = kinds.to_vec();
        if conf.no_aaaa && kinds.len() > 1 {
            kinds.retain(|kind| *kind != AAAA);
        }
        Self { candidates: names.into_iter(), kinds, worst: ResolveError::NotFound }
    }

    /// Returns the questions for the next candidate name.
    ///
    /// # Errors
    /// If no candidates are left, returns the error with which the lookup ends.
    pub fn next_questions(&mut self) -> Result<Vec<Question>, ResolveError> {
        let name = self.candidates.next().ok_or(self.worst)?;
        Ok(self.kinds.iter().map(|&kind| Question { name: name.clone(), kind }).collect())
    }

    /// Handles the answers to the questions of [`Self::next_questions`]. Returns the result of the
    /// lookup, or `None` if the next candidate name must be looked up.
    pub fn on_answers(
        &mut self,
        answers: Vec<Option<DnsAnswer>>,
    ) -> Option<Result<FoundAddresses, ResolveError>> {
        let is_answered = answers.iter().all(Option::is_some);
        match merge(answers) {
            // Like glibc, try the next candidate name if the current one has only records of other
            // types.
            Err(ResolveError::NoData) => self.worst = ResolveError::NoData,
            Err(ResolveError::NotFound) => {}
            // Like glibc, try the next candidate name if the servers reported a failure for this
            // name. If no server answered, stop, because the next question would have no answer
            // either.
            Err(ResolveError::TryAgain) if is_answered => {
                if self.worst == ResolveError::NotFound {
                    self.worst = ResolveError::TryAgain;
                }
            }
            result => return Some(result),
        }
        None
    }
}

/// Merges the addresses of all answers. A missing answer is an error only if no answer has
/// addresses.
fn merge(answers: Vec<Option<DnsAnswer>>) -> Result<FoundAddresses, ResolveError> {
    let asked = answers.len();
    let is_answer = |answer: &DnsAnswer| answer.code != rcode::SERVER_FAILURE;
    let there: Vec<_> = answers.into_iter().flatten().filter(is_answer).collect();
    let missing = there.len() < asked;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::A;

    #[test]
    fn a_failure_of_one_domain_does_not_end_the_search() {
        let conf = Conf::new("search broken.example good.example", None, |_| None);
        let code = |code| vec![Some(DnsAnswer { code, ..DnsAnswer::default() })];
        let lookup = || {
            let mut lookup = NameLookup::new(&conf, conf.candidates("db"), &[A]);
            lookup.next_questions().expect("the first domain");
            lookup
        };
        let mut failed = lookup();
        assert_eq!(failed.on_answers(code(rcode::SERVER_FAILURE)), None);
        failed.next_questions().expect("the second domain");
        assert_eq!(failed.on_answers(code(rcode::NAME_ERROR)), None);
        failed.next_questions().expect("the name itself");
        assert_eq!(failed.on_answers(code(rcode::NAME_ERROR)), None);
        assert_eq!(failed.next_questions(), Err(ResolveError::TryAgain));
        assert_eq!(lookup().on_answers(vec![None]), Some(Err(ResolveError::TryAgain)));
    }
}
