//! The engine: threads that turn a stack for programs in other processes, and one that knows these processes.
//!
//! It owns the ports, the stack and the region; programs attach through channels (see
//! [`towpath_shm::layout`]). An [`Engine`] is made, then [`Engine::run`] works on the calling thread
//! until it is stopped; everything that others want of it meanwhile goes through a [`Remote`]. A thread that waits for
//! other things, too, turns it by [`Engine::turn`]; harnesses do by [`Hand`].
//!
//! Two things are in it. The `shard` is the data path: a stack with its ports, the sockets, and the rings of the
//! programs that hold them. The `registry` is who there is: processes, their control sockets, and the descriptors that
//! are given out and closed. Neither knows the other: each tells what the other is to know by `mail`, and `control`
//! carries that to and fro, between two threads in [`Engine::run`], on one where a host turns the engine.
//!
//! Reading order: `run` (the loop, one page) → `team` (several shards, and threads) → `control` and `mail` → in the
//! registry `requests` (what processes ask that descriptors go with) → in the shard `turn`, `sleeping` → `orders` (what
//! the registry says), `commands` and `rounds` (what programs say, and when a request is answered) → `host` (what the stack tells) → `slots`, `channels`
//! (the sockets, and which process holds them) → `told` and `asked` (commands and requests about sockets) → `births`,
//! `portions` and `ending` (how processes come from processes, and end) → `lifecycle` (how sockets end) → `tell`
//! (events) → `feeding`, `sweep` (memory that programs wait for, and memory that is taken back). What these change, and
//! no more than that, is in `askers`, `ends` and `starved`, so that the shard, which has it, need not know what is done
//! with it. Apart from these stands [`caller`]: how a program is started.
//!
//! What is to be done later stands in lists, which are named by what is done with their entries:
//!
//! | list | what is in it | who does it, when |
//! |---|---|---|
//! | `to_send` | datagram sockets with more to send than a turn allowed | `datagrams`, some in each turn |
//! | `to_return` | datagram sockets whose FIFO lent bytes to packets | `datagrams`, after the stack's turn |
//! | `to_accept` | connections that wait for their first bytes (TCP_DEFER_ACCEPT) | `host`, when these come, or in time |
//! | `to_offer` | those of them whose listener is in another shard, and bytes have come | `among`, in the same turn |
//! | `to_offer_again` | listeners that had no memory for a connection of another shard | `among`, a tenth of a second later |
//! | `to_reset_failed` | those of them that failed meanwhile | `lifecycle`, in the same turn |
//! | `to_reset_unclaimed` | connections taken off a queue by a process that then let go of the listener | `lifecycle`, a second later |
//! | `to_close_parked` | sockets in messages that nobody has received | `lifecycle`, half a minute later |
//! | `to_tell_lingering` | closed sockets whose close(2) waits for the peer | `lifecycle`, some in each turn |
//! | `to_bury` | sockets that the stack and all processes let go of | `lifecycle`, in the same turn |
//! | `to_reuse` | slots of buried sockets that a thread is inside still | `reuse`, when it tells or its process dies |
//! | `to_disinherit` | clones whose process has not begun | `births`, half a minute later |
//! | `to_restrict` | channels of programs that run and have not said HELLO | `births`, seconds later |
//! | `to_resume` | datagram sockets whose device has taken what they waited for | `return_lent`, in the same turn |
//! | `to_publish` | sockets whose TCP state programs do not know yet | `tell`, in the same turn |
//! | `to_tell` | sockets of whose news some holders do not know | `tell`, some in each turn |
//! | `to_sweep` | sockets with memory, or that may have some | `sweep`, some at a time |
//! | `to_go_on` | processes whose CLONE or HELLO has more sockets than a portion | `portions`, one in each turn |
//! | `to_cut_off` | processes that broke the rules | `ending`, in the same turn |
#![warn(missing_docs)]

pub mod caller;
mod clock;
mod config;
mod control;
#[cfg(test)]
mod crossing;
mod domain;
mod engine;
mod errno;
mod hand;
mod ids;
mod link;
mod lookout;
mod mail;
mod net;
mod poller;
mod registry;
mod remote;
mod report;
mod run;
#[cfg(test)]
mod several;
mod shard;
mod team;

pub use config::{BUSY_POLL, Buffers, EngineConfig, ResolverConfig, RouteConfig};
pub use engine::{Engine, EngineError};
pub use hand::Hand;
pub use net::{Applied, InterfaceState, NetState};
pub use registry::Outsider;
pub use remote::{Gone, Remote};
pub use report::{Counters, HOLDERS_SHOWN, Left, Report, SocketEntry, TcpFigures};
pub use run::Next;
pub use shard::DroppedPacket;
pub use towpath_stack::net::{Change, Fault, How, Refused, RouteSpec};
