//! Hosts of one, two, four and eight shards: the same scripts pass for each, whichever shard a
//! socket is in, and whichever one a packet comes in at.

mod addresses;
mod datagrams;
mod frames;
mod groups;
mod hostile;
mod hosts;
mod limits;
mod neighbors;
mod streams;
mod threads;
mod threads_link;
mod wakes;
