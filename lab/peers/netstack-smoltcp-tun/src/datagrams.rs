//! Datagrams that are echoed, and datagrams that are counted. The stack has one socket for all
//! ports.

use std::io::Result;

use futures::{SinkExt, StreamExt};
use netstack_smoltcp::UdpSocket;

pub async fn serve(socket: UdpSocket, port: u16) -> Result<()> {
    let (mut come, mut go) = socket.split();
    let mut count = 0_u64;
    while let Some((bytes, from, to)) = come.next().await {
        match to.port().wrapping_sub(port) {
            0 => go.send((bytes, to, from)).await?,
            1 if bytes.len() == 1 => go.send((count.to_be_bytes().to_vec(), to, from)).await?,
            1 => count += 1,
            _ => {}
        }
    }
    Ok(())
}
