//! Data structures of the socket layer: slabs, the flow table, the timer wheel and linked lists.
//! None of them depends on sockets.

pub(crate) mod flow;
pub(crate) mod lines;
pub(crate) mod slab;
pub(crate) mod timer;
