//! The engine: threads that run a network stack for programs in other processes, and a thread that
//! manages these processes.
//!
//! The engine owns the ports, the stack and the shared memory region. Programs attach through
//! channels (see [`towpath_shm::layout`]). [`Engine::run`] works on the calling thread until it is
//! stopped; other threads access the engine by a [`Remote`]. A thread that also polls its own
//! descriptors calls [`Engine::turn`], and test harnesses use [`Hand`].
//!
//! The engine has two kinds of components. A `shard` is the data path: an event loop with a stack,
//! its ports, the sockets, and the rings of the programs that use them. The `registry` manages
//! processes, their control sockets, and the descriptors that are sent and closed. Both exchange
//! messages (`mail`) through `control`: between threads in [`Engine::run`], or on one thread if the
//! host program runs the engine.
//!
//! Reading order:
//! 1. `run`: the event loop, one page.
//! 2. `team`: several shards, and threads.
//! 3. `control` and `mail`; `query`: queries of other threads.
//! 4. `requests` of the registry: requests that involve descriptors.
//! 5. `shard`: its parts, and `shard/turn`, which calls all of them.
//! 6. `shard/sockets`: `host` handles events of the stack, and `events` notifies programs.
//!    `connecting`, `datagrams` and `transfer` handle requests of programs. `lifecycle` ends
//!    sockets. `feeding` attaches memory for waiting programs, and `sweep` takes back idle memory.
//! 7. `shard/processes`: `channels` and `holds`, then `fork_exec`, `batches` and `ending`, for
//!    processes that start and end.
//! 8. `shard/requests`: `commands`, `socket_requests`, and `ordering`: when a request is answered.
//!
//! A [`Service`] is a server that runs in the engine. `shard/sockets/private` manages its sockets,
//! whose buffers are private memory.
//!
//! [`caller`] is separate: it starts programs.
//!
//! Queues of deferred work are named after the step that handles their entries. Queues of sockets
//! are listed in `shard/sockets/queues`. The queues of processes:
//!
//! | queue | entries | handled by, when |
//! |---|---|---|
//! | `to_disinherit` | clones whose process has not begun | `fork_exec`, half a minute later |
//! | `to_restrict` | channels of programs without a HELLO | `fork_exec`, seconds later |
//! | `to_continue` | processes with a long CLONE or HELLO | `batches`, one per iteration |
//! | `to_cut_off` | processes that broke the rules | `ending`, in the same iteration |
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
mod link_service;
mod lookout;
mod mail;
mod net;
mod poller;
mod queries;
mod query;
mod registry;
mod remote;
mod report;
mod run;
mod service;
#[cfg(test)]
mod several;
mod shard;
mod team;

pub use config::{BUSY_POLL, Buffers, EngineConfig, ResolverConfig, RouteConfig};
pub use engine::{Engine, EngineError};
pub use hand::Hand;
pub use link_service::{LinkService, LinkServicePort, SharedLinkService};
pub use net::{Applied, InterfaceState, NetState};
pub use query::{ListingProgress, Portion, Query, QueryTarget};
pub use registry::UninterceptedProgram;
pub use remote::{AddError, Gone, Remote};
pub use report::{
    CongestionValues, Counters, HOLDERS_SHOWN, Left, Report, SocketEntry, TcpFigures,
};
pub use run::Next;
pub use service::{Service, ServiceError};
pub use shard::DroppedPacket;
pub use towpath_stack::net::{Change, Fault, How, Refused, RouteKind, RouteSpec};
