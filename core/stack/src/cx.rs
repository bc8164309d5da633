//! Context of one turn of the event loop.

use towpath_pool::Pool;
use towpath_tcp::Instant;

/// Arguments that every step of a turn of the event loop needs.
pub(crate) struct Cx<'a, H> {
    /// Time at which the turn takes place.
    pub now: Instant,
    /// Owner of the stack, which receives its events.
    pub host: &'a mut H,
    /// Pool from which packets are allocated, and to which they are freed.
    pub pool: &'a mut Pool,
}
