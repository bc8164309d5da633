//! Tests of hosts with one, two, four and eight shards. The same scripts pass for each number,
//! whichever shard has a socket, and wherever a packet arrives.

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
