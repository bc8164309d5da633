//! A stub resolver without I/O: it creates questions, parses answers, and parses the configuration
//! files.
//!
//! - [`Conf`]: settings of resolv.conf(5);
//! - [`NameLookup`]: the questions for the addresses of a name, with the search list;
//! - [`Inquiry`]: which server to ask, over UDP or TCP, and the handling of its answers;
//! - [`Name`], [`Question`], [`DnsAnswer`]: messages (RFC 1035);
//! - [`hosts`]: lines of hosts(5);
//! - [`Policy`]: the order in which to try the addresses of a name (RFC 6724).
//!
//! The caller sends and receives the messages, and passes a function that returns random numbers:
//!
//! ```
//! use towpath_dns::{Conf, Inquiry, NameLookup, Protocol};
//!
//! let conf = Conf::new("nameserver 192.0.2.1", None, |_| None);
//! let mut lookup = NameLookup::new(&conf, conf.candidates("example.org"), &[towpath_dns::A]);
//! let questions = lookup.next_questions().expect("a name");
//! let mut inquiry = Inquiry::new(&conf, &questions, || 7);
//! let attempt = inquiry.next_attempt().expect("a server");
//! assert_eq!(attempt.server.to_string(), "192.0.2.1:53");
//! assert_eq!((attempt.protocol, attempt.messages.len()), (Protocol::Udp, 1));
//! // ... send the messages; then `inquiry.on_message(&answer)`, until it returns true.
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod conf;
pub mod hosts;
mod inquiry;
mod lookup;
mod message;
mod order;

pub use conf::Conf;
pub use inquiry::{Attempt, DATAGRAM_MAX, Inquiry, MESSAGES_MAX, Protocol};
pub use lookup::{FoundAddresses, NameLookup, ResolveError};
pub use message::{A, AAAA, CNAME, DnsAnswer, Name, PTR, Question, rcode};
pub use order::{ADDRESSES_MAX, Policy, Routed};
