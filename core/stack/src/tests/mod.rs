//! The stack as its owner sees it: two hosts, a link, virtual time.

mod datagram;
mod errors;
mod fast_open;
mod frames;
mod gateway;
mod groups;
mod listen;
mod next_hops;
mod output;
mod peers;
mod robust;
mod scale;
mod settings;
mod shards;
mod socket_filter;
mod stalls;
mod stream;
mod syn_cookies;
mod world;
