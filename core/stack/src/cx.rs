//! Context of a turn.

use towpath_pool::Pool;
use towpath_tcp::Instant;

/// Arguments that every step of a turn takes.
pub(crate) struct Cx<'a, H> {
    /// Time of the turn.
    pub now: Instant,
    /// Owner of the stack.
    pub host: &'a mut H,
    /// Memory of packets.
    pub pool: &'a mut Pool,
}
