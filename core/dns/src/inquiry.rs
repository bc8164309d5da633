//! Queries to nameservers: which server to ask, over UDP or TCP, and when to ask the next one.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use crate::conf::Conf;
use crate::message::{self, DnsAnswer, Question, rcode};

/// Maximum length in bytes of an answer over UDP. Some servers send more than the size that the
/// question announces.
pub const DATAGRAM_MAX: usize = 65_535;
/// Maximum number of messages that the resolver reads in one attempt, including messages that match
/// no question.
pub const MESSAGES_MAX: usize = 64;

/// Transport protocol of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// All questions are sent at once, and the answers arrive in any order.
    Udp,
    /// Each message is preceded by its length in 16 bits (RFC 1035 §4.2.2). A question is sent
    /// after the answer to the previous one.
    Tcp,
}

/// Questions to send to one nameserver.
///
/// Send them from a new socket with a random port, and connect the socket. The stack then drops
/// datagrams of other hosts, which makes forged answers less likely (RFC 5452).
#[derive(Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Address of the nameserver.
    pub server: SocketAddr,
    /// Time after which the attempt has failed if not all questions are answered.
    pub timeout: Duration,
    /// Transport protocol over which the questions are sent.
    pub protocol: Protocol,
    /// Questions in wire format.
    pub messages: Vec<Vec<u8>>,
}

/// Queries nameservers until all questions are answered.
///
/// Carry out each attempt that [`Self::next_attempt`] returns: send its questions, and pass the
/// received messages to [`Self::on_message`] until it returns true. If the attempt's timeout
/// expires or an error occurs before, the attempt has failed, and the next server is asked.
#[derive(Debug)]
pub struct Inquiry<'a> {
    conf: &'a Conf,
    questions: &'a [Question],
    answers: Vec<Option<DnsAnswer>>,
    /// For each question, the answer of a server that reported a failure (SERVFAIL).
    failures: Vec<Option<DnsAnswer>>,
    /// Returns random numbers that an attacker cannot predict.
    random: fn() -> u16,
    /// Index in the configuration of the server that is asked first.
    first: usize,
    /// Number of servers asked so far. A server that was asked twice counts twice.
    asked: usize,
    edns: bool,
    /// Further attempts with the current server: the protocol, and the indices of the questions.
    todo: VecDeque<(Protocol, Vec<usize>)>,
    protocol: Protocol,
    /// Questions of the current attempt without an answer: the index of the question, and the
    /// identifier of its message.
    open: Vec<(usize, u16)>,
    /// Indices of the questions in the current attempt whose answers did not fit in a UDP datagram.
    truncated: Vec<usize>,
    /// Whether every answer to the current attempt so far was useful.
    is_useful: bool,
    /// Number of messages that may still be read in the current attempt.
    left: usize,
}

impl<'a> Inquiry<'a> {
    /// Creates an inquiry. `random` must return numbers that an attacker cannot predict, which are
    /// used as message identifiers (RFC 5452).
    pub fn new(conf: &'a Conf, questions: &'a [Question], random: fn() -> u16) -> Self {
        let first = if conf.rotate { usize::from(random()) % conf.servers.len().max(1) } else { 0 };
        Self {
            conf,
            questions,
            answers: vec![None; questions.len()],
            failures: vec![None; questions.len()],
            random,
            first,
            asked: 0,
            edns: conf.edns,
            todo: VecDeque::new(),
            protocol: Protocol::Udp,
            open: Vec::new(),
            truncated: Vec::new(),
            is_useful: true,
            left: 0,
        }
    }

    /// Returns the next attempt, or `None` if all questions are answered or all servers were asked
    /// as often as configured.
    pub fn next_attempt(&mut self) -> Option<Attempt> {
        if !self.open.is_empty() {
            // The caller abandoned the previous attempt, so skip the remaining attempts with this
            // server.
            self.todo.clear();
        }
        if self.todo.is_empty() {
            let servers = self.conf.servers.len();
            let is_answered = self.answers.iter().all(Option::is_some);
            if is_answered || self.asked == servers * self.conf.attempts as usize {
                return None;
            }
            self.asked += 1;
            self.plan();
        }
        let (protocol, places) = self.todo.pop_front()?;
        (self.protocol, self.is_useful, self.left) = (protocol, true, MESSAGES_MAX);
        self.truncated.clear();
        self.open = places.into_iter().zip(self.identifiers()).collect();
        let message = |&(place, id): &(usize, u16)| self.questions[place].message(id, self.edns);
        let messages = self.open.iter().map(message).collect();
        let place = self.server();
        let (server, timeout) = (self.conf.servers[place], self.conf.patience(place));
        Some(Attempt { server, timeout, protocol, messages })
    }

    /// Handles a message from the server. Returns true if the attempt is over.
    pub fn on_message(&mut self, message: &[u8]) -> bool {
        self.left = self.left.saturating_sub(1);
        let found = self.open.iter().enumerate().find_map(|(at, &(place, id))| {
            Some((at, place, message::read(message, id, &self.questions[place])?))
        });
        let Some((at, place, answer)) = found else {
            // A message over UDP that matches no question may be forged, so ignore it. A message
            // over TCP is from the server, so the attempt has failed.
            return self.protocol == Protocol::Tcp || self.left == 0;
        };
        if self.edns && answer.code == rcode::FORMAT_ERROR && !answer.truncated {
            // The server does not support EDNS(0), so ask it again without EDNS(0).
            self.edns = false;
            self.open.clear();
            self.plan();
            return true;
        }
        if answer.truncated && self.protocol == Protocol::Tcp {
            return true;
        }
        self.open.swap_remove(at);
        if answer.truncated {
            self.truncated.push(place);
        } else if matches!(answer.code, rcode::NO_ERROR | rcode::NAME_ERROR) && !answer.lame {
            self.answers[place] = Some(answer);
        } else {
            // After SERVFAIL, NOTIMP, REFUSED or a lame answer, ask the next server.
            self.is_useful = false;
            if answer.code == rcode::SERVER_FAILURE {
                self.failures[place] = Some(answer);
            }
        }
        if self.open.is_empty() {
            self.complete();
        }
        self.open.is_empty() || self.left == 0
    }

    /// Returns the answer to each question. If no server answered a question, returns the answer of
    /// a server that reported [`rcode::SERVER_FAILURE`] instead, or `None`.
    pub fn into_answers(self) -> Vec<Option<DnsAnswer>> {
        let failures = self.failures.into_iter();
        self.answers.into_iter().zip(failures).map(|(answer, failure)| answer.or(failure)).collect()
    }

    /// Plans the attempts with the current server for all unanswered questions.
    fn plan(&mut self) {
        let open = self.answers.iter().enumerate().filter(|(_, answer)| answer.is_none());
        let open: Vec<usize> = open.map(|(place, _)| place).collect();
        let protocol = if self.conf.use_vc { Protocol::Tcp } else { Protocol::Udp };
        self.todo.clear();
        if self.conf.single_request && !self.conf.use_vc {
            self.todo.extend(open.into_iter().map(|place| (protocol, vec![place])));
        } else {
            self.todo.push_back((protocol, open));
        }
    }

    /// Ends an attempt in which each question was answered.
    fn complete(&mut self) {
        if !self.is_useful {
            self.todo.clear();
        }
        if !self.truncated.is_empty() {
            self.todo.push_front((Protocol::Tcp, std::mem::take(&mut self.truncated)));
        }
    }

    /// Returns the index of the server that is asked now.
    fn server(&self) -> usize {
        (self.first + self.asked - 1) % self.conf.servers.len()
    }

    /// Returns a random message identifier for each question; all are different.
    fn identifiers(&self) -> Vec<u16> {
        let mut ids = Vec::with_capacity(self.questions.len());
        while ids.len() < self.questions.len() {
            let id = (self.random)();
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::message::{A, AAAA, Name};

    std::thread_local!(static LAST: Cell<u16> = const { Cell::new(0) });

    fn counted() -> u16 {
        LAST.set(LAST.get() + 1);
        LAST.get()
    }

    fn conf(options: &str) -> Conf {
        let text = format!("nameserver 192.0.2.1\nnameserver 192.0.2.2\noptions {options}\n");
        Conf::new(&text, None, |_| None)
    }

    fn questions() -> Vec<Question> {
        let name = Name::new(b"x.example", b"").expect("a name");
        [A, AAAA].map(|kind| Question { name: name.clone(), kind }).into()
    }

    /// Creates the answer to `question` without records: sets the flags in the third and fourth
    /// byte of its header.
    fn answer(question: &[u8], truncated: bool, code: u8) -> Vec<u8> {
        let mut message = question.to_vec();
        (message[2], message[3]) = (0x81 | u8::from(truncated) << 1, 0x80 | code);
        // Remove the OPT record of EDNS(0) from the record count.
        message[11] = 0;
        message
    }

    fn servers(attempts: &[Attempt]) -> Vec<u8> {
        attempts.iter().map(|attempt| attempt.server.to_string().as_bytes()[8] - b'0').collect()
    }

    #[test]
    fn silent_servers_are_asked_in_turn_and_with_longer_timeouts() {
        let (conf, questions) = (conf("timeout:3"), questions());
        let mut inquiry = Inquiry::new(&conf, &questions, counted);
        let attempts: Vec<_> = std::iter::from_fn(|| inquiry.next_attempt()).collect();
        assert_eq!(servers(&attempts), [1, 2, 1, 2]);
        let seconds: Vec<_> = attempts.iter().map(|attempt| attempt.timeout.as_secs()).collect();
        assert_eq!(seconds, [3, 3, 3, 3]);
        assert_eq!(inquiry.into_answers(), [None, None]);
    }

    #[test]
    fn answers_in_any_order_end_the_inquiry_and_strangers_do_not() {
        let (conf, questions) = (conf(""), questions());
        let mut inquiry = Inquiry::new(&conf, &questions, counted);
        let attempt = inquiry.next_attempt().expect("a server");
        let [first, second] = &attempt.messages[..] else { panic!("two questions") };
        let mut forged = answer(second, false, 0);
        forged[0] ^= 0x80;
        assert!(!inquiry.on_message(&forged));
        assert!(!inquiry.on_message(&answer(second, false, 0)));
        // The answer to the second question arrives a second time, and is ignored.
        assert!(!inquiry.on_message(&answer(second, false, 0)));
        assert!(inquiry.on_message(&answer(first, false, 3)));
        assert_eq!(inquiry.next_attempt(), None);
        let codes: Vec<_> =
            inquiry.into_answers().into_iter().flatten().map(|it| it.code).collect();
        assert_eq!(codes, [3, 0]);
    }

    #[test]
    fn an_attempt_reads_a_limited_number_of_messages() {
        let (conf, questions) = (conf(""), questions());
        let mut inquiry = Inquiry::new(&conf, &questions, counted);
        inquiry.next_attempt().expect("a server");
        let read = (1..).find(|_| inquiry.on_message(b"no message"));
        assert_eq!(read, Some(MESSAGES_MAX));
        assert_eq!(servers(&[inquiry.next_attempt().expect("a server")]), [2]);
    }

    #[test]
    fn a_truncated_answer_is_requested_over_tcp() {
        let (conf, questions) = (conf(""), questions());
        let mut inquiry = Inquiry::new(&conf, &questions, counted);
        let attempt = inquiry.next_attempt().expect("a server");
        assert!(!inquiry.on_message(&answer(&attempt.messages[0], false, 0)));
        assert!(inquiry.on_message(&answer(&attempt.messages[1], true, 0)));
        let attempt = inquiry.next_attempt().expect("the same server");
        assert_eq!((attempt.protocol, attempt.messages.len()), (Protocol::Tcp, 1));
        assert_eq!(servers(std::slice::from_ref(&attempt)), [1]);
        assert!(inquiry.on_message(&answer(&attempt.messages[0], false, 0)));
        assert_eq!(inquiry.next_attempt(), None);
    }

    #[test]
    fn a_server_without_edns_is_asked_again_without_it() {
        let (conf, questions) = (conf("edns0"), questions());
        let mut inquiry = Inquiry::new(&conf, &questions, counted);
        let attempt = inquiry.next_attempt().expect("a server");
        let lens: Vec<_> = attempt.messages.iter().map(Vec::len).collect();
        assert!(inquiry.on_message(&answer(&attempt.messages[0], false, 1)));
        let attempt = inquiry.next_attempt().expect("the same server");
        assert_eq!(servers(std::slice::from_ref(&attempt)), [1]);
        let without: Vec<_> = attempt.messages.iter().map(|message| message.len() + 11).collect();
        assert_eq!(without, lens);
    }

    #[test]
    fn after_a_failure_the_next_server_gets_the_open_questions() {
        let (conf, questions) = (conf("single-request"), questions());
        let mut inquiry = Inquiry::new(&conf, &questions, counted);
        let attempt = inquiry.next_attempt().expect("a server");
        assert_eq!(attempt.messages.len(), 1);
        assert!(inquiry.on_message(&answer(&attempt.messages[0], false, 0)));
        let attempt = inquiry.next_attempt().expect("the second question");
        const SERVFAIL: u8 = 2;
        assert!(inquiry.on_message(&answer(&attempt.messages[0], false, SERVFAIL)));
        let attempt = inquiry.next_attempt().expect("the next server");
        assert_eq!((servers(std::slice::from_ref(&attempt)), attempt.messages.len()), (vec![2], 1));
        let codes: Vec<_> =
            inquiry.into_answers().into_iter().flatten().map(|it| it.code).collect();
        assert_eq!(codes, [rcode::NO_ERROR, SERVFAIL]);
    }
}
