//! Context of a turn.

use towpath_pool::Pool;
use towpath_tcp::Instant;

/// Arguments passed to every step of a turn.
pub(crate) struct Cx<'a, H> {
    /// Time of the turn.
    pub now: Instant,
    /// Owner of the stack.
    pub host: &'a mut H,
    /// Pool that packets are taken from and returned to.
    pub pool: &'a mut Pool,
}
