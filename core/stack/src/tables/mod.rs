//! Data structures of the socket layer: slabs, the table of 4-tuples, the timer wheel and linked
//! lists. No structure here depends on sockets.

pub(crate) mod flow;
pub(crate) mod lines;
pub(crate) mod slab;
pub(crate) mod timer;
