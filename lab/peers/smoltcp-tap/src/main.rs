//! A server on smoltcp: `smoltcp-tap DEVICE ADDRESS/LENGTH PORT`.
//!
//! DEVICE is a TAP device that is up. The server provides the service of lab/load/src/serve.rs on
//! one thread that polls all sockets in turn, as smoltcp itself does. smoltcp has no listeners:
//! each listening socket becomes one connection. Therefore, as many sockets listen as clients may
//! connect at once.
#![forbid(unsafe_code)]

mod datagrams;
mod streams;

use std::error::Error;
use std::os::fd::AsRawFd;

use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::phy::{Medium, TunTapInterface, wait};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr};

use datagrams::Datagrams;
use streams::{Role, Streams};

/// Locally administered Ethernet address of the stack, unique in its namespace.
const LINK_ADDRESS: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 2]);

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [device, address, port] = &words[..] else {
        return Err("usage: smoltcp-tap DEVICE ADDRESS/LENGTH PORT".into());
    };
    let address: IpCidr = address.parse().map_err(|()| "an address with its length")?;
    run(device, address, port.parse()?)
}

fn run(device: &str, address: IpCidr, port: u16) -> Result<(), Box<dyn Error>> {
    let mut device = TunTapInterface::new(device, Medium::Ethernet)?;
    let fd = device.as_raw_fd();
    let mut interface =
        Interface::new(Config::new(LINK_ADDRESS.into()), &mut device, Instant::now());
    interface.update_ip_addrs(|all| all.push(address).expect("the first of them"));
    let mut sockets = SocketSet::new(Vec::new());
    let mut datagrams = Datagrams::new(&mut sockets, port)?;
    // Number of listening sockets, equal to the benchmark's simultaneous connects to each port.
    let mut streams = [
        Streams::new(port, Role::Echo, 128),
        Streams::new(port + 1, Role::Sink, 16),
        Streams::new(port + 2, Role::Source, 16),
    ];
    let mut bytes = vec![0; 128 * 1024];
    loop {
        let mut is_busy = false;
        for streams in &mut streams {
            is_busy |= streams.serve(&mut sockets, &mut bytes)?;
        }
        is_busy |= datagrams.serve(&mut sockets, &mut bytes);
        let polled = interface.poll(Instant::now(), &mut device, &mut sockets);
        if !is_busy && polled == PollResult::None {
            wait(fd, interface.poll_delay(Instant::now(), &sockets))?;
        }
    }
}
