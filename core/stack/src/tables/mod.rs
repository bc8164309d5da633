//! Data structures of the socket layer, which know nothing of sockets: slabs, the table of 4-tuples,
//! the timer wheel and linked lists.

pub(crate) mod flow;
pub(crate) mod lines;
pub(crate) mod slab;
pub(crate) mod timer;
