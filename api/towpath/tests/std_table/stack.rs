//! The cases on ours.

pub mod net {
    pub use towpath::net::*;
}

#[path = "stack_beyond.rs"]
pub mod beyond;
#[path = "cases/ipv6.rs"]
pub mod ipv6;
#[path = "cases/listener.rs"]
pub mod listener;
#[path = "cases/options.rs"]
pub mod options;
#[path = "cases/shutdown.rs"]
pub mod shutdown;
#[path = "cases/signals.rs"]
pub mod signals;
#[path = "cases/stream.rs"]
pub mod stream;
#[path = "cases/udp.rs"]
pub mod udp;
#[path = "cases/udp_options.rs"]
pub mod udp_options;
