//! TCP sockets: receiving and sending of segments, opening of connections by this host and by
//! peers, and the end of connections.

pub(crate) mod accepting;
pub(crate) mod active;
pub(crate) mod ended;
pub(crate) mod fast_open;
pub(crate) mod handshake;
pub(crate) mod late_segments;
pub(crate) mod listen;
pub(crate) mod listener;
pub(crate) mod outcome;
pub(crate) mod output_lines;
pub(crate) mod passive;
pub(crate) mod path;
pub(crate) mod rx;
pub(crate) mod segment;
pub(crate) mod stream;
pub(crate) mod syn_bytes;
pub(crate) mod time_wait;
pub(crate) mod tuning;
pub(crate) mod tx;
pub(crate) mod waits;
