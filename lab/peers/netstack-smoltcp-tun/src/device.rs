//! TUN device with the kernel's segmentation offloads in both directions, so that a read or write
//! carries up to 64 KiB. The driver splits received packets, as in netstack-smoltcp's own example
//! for Linux, and merges sent ones.

use std::io::Result;

use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use netstack_smoltcp::{AnyIpPktFrame, Stack};
use tun_rs::{AsyncDevice, DeviceBuilder, GROTable, IDEAL_BATCH_SIZE, VIRTIO_NET_HDR_LEN};

/// Maximum length of a packet before the kernel or the driver splits it, in bytes.
const LARGEST: usize = 65535;
/// Buffer size of a split packet in bytes. Larger than the packet, because the driver refuses
/// packets that do not fit.
const PACKET: usize = 2048;

/// Opens the device. Its addresses and state are configured elsewhere.
pub fn open(name: &str) -> Result<AsyncDevice> {
    DeviceBuilder::new().name(name).offload(true).inherit_enable_state().build_async()
}

/// Sends the stack's packets, in batches of all available ones.
pub async fn send(device: &AsyncDevice, from: SplitStream<Stack>) -> Result<()> {
    let mut table = GROTable::default();
    let mut batches = from.ready_chunks(IDEAL_BATCH_SIZE);
    // Reserve room for the driver's header before each packet, and for following packets that the
    // driver appends.
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

/// Receives packets for the stack. Drops data that the stack refuses.
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
