//! A server on netstack-smoltcp: `netstack-smoltcp-tun DEVICE ADDRESS/LENGTH PORT`.
//!
//! DEVICE is a TUN device that is up. The server offers what bench/load/src/serve.rs says, a task of tokio's for each
//! connection, all on one thread. The stack answers for all addresses, as proxies need it: what it is asked at ADDRESS and
//! the ports is served.
#![forbid(unsafe_code)]

mod datagrams;
mod device;
mod streams;

use std::error::Error;
use std::net::IpAddr;

use futures::StreamExt;
use netstack_smoltcp::StackBuilder;

/// Of the device, too.
const MTU: usize = 1500;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [device, address, port] = &words[..] else {
        return Err("usage: netstack-smoltcp-tun DEVICE ADDRESS/LENGTH PORT".into());
    };
    let (address, _) = address.split_once('/').ok_or("an address with its length")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(device, address.parse()?, port.parse()?))
}

async fn run(device: &str, address: IpAddr, port: u16) -> Result<(), Box<dyn Error>> {
    let (stack, runner, datagrams, listener) = StackBuilder::default()
        .enable_tcp(true)
        .enable_udp(true)
        .mtu(MTU)
        .add_ip_filter_fn(move |_, to| *to == address)
        .build()?;
    let (to_stack, from_stack) = stack.split();
    let device = device::open(device)?;
    tokio::select! {
        result = runner.ok_or("no TCP")? => result?,
        result = device::send(&device, from_stack) => result?,
        result = device::receive(&device, to_stack) => result?,
        result = datagrams::serve(datagrams.ok_or("no UDP")?, port) => result?,
        () = streams::serve(listener.ok_or("no TCP")?, port) => {}
    }
    Err("the stack has ended".into())
}
