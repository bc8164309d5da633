//! Hosts of one, two, four and eight shards: the same scripts pass for each, whichever shard a socket is in, and
//! whichever one a packet comes in at.

mod datagrams;
mod hostile;
mod hosts;
mod limits;
mod streams;
mod threads;
