//! The TUN device, with the kernel's segmentation offloads both ways: a read or write carries up to
//! 64 KiB. The driver splits received packets, as netstack-smoltcp's own example for Linux does,
//! and joins sent ones.

use std::io::Result;

use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use netstack_smoltcp::{AnyIpPktFrame, Stack};
use tun_rs::{AsyncDevice, DeviceBuilder, GROTable, IDEAL_BATCH_SIZE, VIRTIO_NET_HDR_LEN};

/// Length of the largest packet before the kernel or the driver has split it.
const LARGEST: usize = 65535;
/// Length of a packet afterwards, and somewhat more: the driver refuses packets for which there is
/// no room.
const PACKET: usize = 2048;

/// As it is: addresses and the state are somebody else's.
pub fn open(name: &str) -> Result<AsyncDevice> {
    DeviceBuilder::new().name(name).offload(true).inherit_enable_state().build_async()
}

/// Sends the stack's packets, as many at once as there are.
pub async fn send(device: &AsyncDevice, from: SplitStream<Stack>) -> Result<()> {
    let mut table = GROTable::default();
    let mut batches = from.ready_chunks(IDEAL_BATCH_SIZE);
    // The driver writes its header in front of a packet, and appends those that go on with it,
    // where there is room.
    let mut frames: Vec<_> = (0..IDEAL_BATCH_SIZE)
        .map(|_| Vec::with_capacity(2 * VIRTIO_NET_HDR_LEN + LARGEST))
        .collect();
    while let Some(batch) = batches.next().await {
        let count = batch.len();
        for (frame, packet) in frames.iter_mut().zip(batch) {
            frame.clear();
            frame.resize(VIRTIO_NET_HDR_LEN, 0);
            frame.extend_from_slice(&packet?);
        }
        device.send_multiple(&mut table, &mut frames[..count], VIRTIO_NET_HDR_LEN).await?;
    }
    Ok(())
}

/// Receives for the stack. Data that it does not take as a packet is lost.
pub async fn receive(device: &AsyncDevice, mut to: SplitSink<Stack, AnyIpPktFrame>) -> Result<()> {
    let mut large = vec![0; VIRTIO_NET_HDR_LEN + LARGEST];
    let mut packets = vec![vec![0; PACKET]; IDEAL_BATCH_SIZE];
    let mut lengths = vec![0; IDEAL_BATCH_SIZE];
    loop {
        let count = device.recv_multiple(&mut large, &mut packets, &mut lengths, 0).await?;
        for (packet, &len) in packets.iter().zip(&lengths).take(count) {
            let _ = to.send(packet[..len].to_vec()).await;
        }
    }
}
