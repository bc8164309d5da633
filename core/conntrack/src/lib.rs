//! Connection tracking and address translation (NAT) of a router.
//!
//! [`Conntrack`] sees each packet at its first and last hook, by [`PacketView`]. The tracker finds
//! the flow of the packet, and checks TCP segments against the windows of their connection.
//! [`NatRules`] translate addresses and ports. Access lists match the state of the flow
//! ([`FlowState`](towpath_filter::FlowState)).
//!
//! # Behaviour
//!
//! - Mappings depend only on the inside address and port (RFC 4787, "Endpoint-Independent
//!   Mapping").
//! - Answers pass only from the address and port that a packet was sent to. With `full-cone`,
//!   packets of any sender pass.
//! - Outside ports are random. For UDP they have the parity of the inside port.
//! - A full table evicts only unanswered flows, closed ones, and ICMP queries. A UDP flow can be
//!   evicted until a request follows an answer.
//! - ICMP errors are passed on to the sender of the quoted packet, with the quotation translated.
//!
//! # Cost
//!
//! A packet of a known flow costs one keyed hash and one look-up. Nothing is allocated for a
//! packet, because the tables have a fixed size. A flow takes at most [`BYTES_PER_FLOW`]
//! bytes. Packets remove expired flows once per second, a bounded number at a time.
//!
//! Reading order: `tuple`, `view`; `flow`, `table`, `sources`, `index`; `tcp`; `rules`, `mappings`;
//! `tracker`, `departure`; `quote`, `fragments`, `events`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod departure;
mod events;
mod flow;
mod fragments;
mod index;
mod mappings;
mod quote;
mod rules;
mod sources;
mod table;
mod tcp;
mod tracker;
mod tuple;
mod view;

pub use events::{EVENTS_MAX, FlowEvent, FlowEventKind, TrackerCounters};
pub use flow::{FlowClass, FlowInfo, FlowTimeouts, FlowTraffic};
pub use rules::{NatKind, NatRule, NatRuleError, NatRules};
pub use table::FlowRemoval;
pub use tracker::{Conntrack, FLOWS_MAX, FLOWS_MOST, FLOWS_PER_SOURCE_MAX, TrackerLimits};
pub use tuple::{FlowDirection, Tuple};
pub use view::{FragmentPosition, PacketToken, PacketView};

/// Upper bound in bytes of the memory that one flow takes in all tables of the tracker.
pub const BYTES_PER_FLOW: usize = 384;
