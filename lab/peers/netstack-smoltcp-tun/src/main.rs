//! A server on netstack-smoltcp: `netstack-smoltcp-tun DEVICE ADDRESS/LENGTH PORT`. Without address
//! and port, a proxy: `netstack-smoltcp-tun DEVICE`.
//!
//! DEVICE is a TUN device that is up. The server provides the service of lab/load/src/serve.rs,
//! with a tokio task per connection, all on one thread. As proxies require, the stack accepts
//! packets to all addresses; the server answers those to ADDRESS and its ports. The proxy accepts
//! all destinations, and connects to them by sockets of this host.
#![forbid(unsafe_code)]

mod datagrams;
mod device;
mod forward;
mod streams;

use std::error::Error;
use std::net::IpAddr;

use futures::StreamExt;
use netstack_smoltcp::{StackBuilder, TcpListener, UdpSocket};

/// MTU of the stack and of the device.
const MTU: usize = 1500;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let server = match &words[..] {
        [_] => None,
        [_, address, port] => {
            let (address, _) = address.split_once('/').ok_or("an address with its length")?;
            Some((address.parse()?, port.parse()?))
        }
        _ => return Err("usage: netstack-smoltcp-tun DEVICE [ADDRESS/LENGTH PORT]".into()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(&words[0], server))
}

async fn run(device: &str, server: Option<(IpAddr, u16)>) -> Result<(), Box<dyn Error>> {
    let (stack, runner, datagrams, listener) = StackBuilder::default()
        .enable_tcp(true)
        .enable_udp(true)
        .mtu(MTU)
        .add_ip_filter_fn(move |_, to| server.is_none_or(|(address, _)| *to == address))
        .build()?;
    let (to_stack, from_stack) = stack.split();
    let device = device::open(device)?;
    tokio::select! {
        result = runner.ok_or("no TCP")? => result?,
        result = device::send(&device, from_stack) => result?,
        result = device::receive(&device, to_stack) => result?,
        result = serve(datagrams.ok_or("no UDP")?, listener.ok_or("no TCP")?, server) => result?,
    }
    Err("the stack has ended".into())
}

/// Until the stack ends: as a server at a port, or as a proxy.
async fn serve(
    socket: UdpSocket,
    listener: TcpListener,
    server: Option<(IpAddr, u16)>,
) -> std::io::Result<()> {
    let Some((_, port)) = server else {
        let connections = async { Ok(forward::connections(listener).await) };
        return tokio::try_join!(forward::datagrams(socket), connections).map(drop);
    };
    let connections = async { Ok(streams::serve(listener, port).await) };
    tokio::try_join!(datagrams::serve(socket, port), connections).map(drop)
}
