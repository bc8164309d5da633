//! Hosts of one, two, four and eight shards. The same scripts pass for each, whichever shard has a
//! socket, and wherever a packet comes in.

mod addresses;
mod datagrams;
mod frames;
mod groups;
mod hostile;
mod hosts;
mod interfaces;
mod limits;
mod neighbors;
mod streams;
mod threads;
mod threads_link;
mod wakes;
