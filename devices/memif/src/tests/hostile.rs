//! Rings whose peer writes arbitrary descriptors and indices.

use std::sync::atomic::Ordering::{Acquire, Release};

use proptest::prelude::*;
use towpath_pool::{Batch, Pool};
use towpath_shm::Mapping;

use crate::layout::{BufferDescriptor, COOKIE, FLAGS, HEAD, MASK_INTERRUPT, NEXT, TAIL, ring_len};
use crate::{
    ClientMemory, MemifCounters, MemifDevice, RingFault, RingPair, RingSpace, RingSpec,
    SharedMemory,
};

const LOG2_SIZE: u8 = 3;
const SIZE: u16 = 1 << LOG2_SIZE;
const TO_CLIENT: usize = ring_len(LOG2_SIZE);
const BUFFERS: u32 = 2 * ring_len(LOG2_SIZE) as u32;
const LEN: usize = 1 << 16;

/// The device of a server, and the memory of its client as the client sees it.
fn server() -> (MemifDevice, Mapping) {
    let memory = Mapping::shared("client", LEN).expect("memory");
    for ring in [0, TO_CLIENT] {
        memory.u32(ring).store(COOKIE, Release);
    }
    let mut regions = SharedMemory::default();
    let file = memory.file().expect("shared").try_clone().expect("a descriptor");
    regions.add(LEN as u64, file).expect("valid");
    let ring = |offset| RingSpec { region: 0, offset, log2_size: LOG2_SIZE };
    let pair = RingPair { to_server: ring(0), to_client: ring(TO_CLIENT as u32) };
    (MemifDevice::server(regions, pair).expect("valid"), memory)
}

/// The device of a client, and its memory as the server sees it.
fn client() -> (MemifDevice, Mapping) {
    let own = ClientMemory::new(LOG2_SIZE, 2048).expect("memory");
    let file = own.file().try_clone().expect("a descriptor");
    let memory = Mapping::from_file(file, own.region_len() as usize).expect("memory");
    (MemifDevice::client(&own).expect("valid"), memory)
}

fn buffer(flags: u16, len: u32, offset: u32) -> BufferDescriptor {
    BufferDescriptor { flags, region: 0, len, offset }
}

/// Receives frames after the peer has written descriptors and its index.
fn receive(
    device: &mut MemifDevice,
    memory: &Mapping,
    all: &[BufferDescriptor],
    index: u16,
) -> Result<Vec<usize>, RingFault> {
    let is_server = memory.len() == LEN;
    let (ring, place) = if is_server { (0, HEAD) } else { (TO_CLIENT, TAIL) };
    for (slot, descriptor) in all.iter().enumerate() {
        descriptor.write(memory, ring, slot as u16);
    }
    memory.u16(ring + place).store(index, Release);
    let (mut pool, mut out) = (Pool::default(), Batch::new());
    device.receive(&mut MemifCounters::default(), &mut pool, &mut out, 64)?;
    Ok(out.iter().map(|packet| packet.len()).collect())
}

#[test]
fn invalid_descriptors_and_indices_of_a_client_are_recognized() {
    let end = LEN as u32;
    let fault = Err(RingFault::Descriptor);
    let cases = [
        ("valid", vec![buffer(0, 60, BUFFERS)], 1, Ok(vec![60])),
        ("at the end", vec![buffer(0, 60, end - 60)], 1, Ok(vec![60])),
        ("two buffers", vec![buffer(NEXT, 60, BUFFERS), buffer(0, 9, 0)], 2, Ok(vec![69])),
        ("empty part", vec![buffer(NEXT, 0, 0), buffer(0, 9, 0)], 2, Ok(vec![9])),
        ("empty frame", vec![buffer(0, 0, 0), buffer(0, 9, 0)], 2, Ok(vec![9])),
        ("unknown flags", vec![buffer(0xfffe, 60, BUFFERS)], 1, Ok(vec![60])),
        ("behind the region", vec![buffer(0, 60, end - 59)], 1, fault.clone()),
        ("overflowing length", vec![buffer(0, u32::MAX, BUFFERS)], 1, fault.clone()),
        ("overflowing offset", vec![buffer(0, 60, u32::MAX)], 1, fault.clone()),
        ("no last buffer", vec![buffer(NEXT, 60, BUFFERS)], 1, fault.clone()),
        ("no last buffer in a full ring", vec![buffer(NEXT, 9, 0); 8], 8, fault.clone()),
        (
            "unknown region",
            vec![BufferDescriptor { region: 1, ..buffer(0, 60, BUFFERS) }],
            1,
            fault.clone(),
        ),
        ("index that jumps", vec![], SIZE + 1, Err(RingFault::Index)),
        ("index that goes back", vec![], u16::MAX, Err(RingFault::Index)),
    ];
    for (name, all, index, wanted) in cases {
        let (mut device, memory) = server();
        assert_eq!(receive(&mut device, &memory, &all, index), wanted, "{name}");
    }
}

#[test]
fn frames_that_exceed_a_packet_are_dropped() {
    let (mut device, memory) = server();
    let mut all = vec![buffer(NEXT, 0xf000, 0), buffer(0, 0xf000, 0), buffer(0, 60, BUFFERS)];
    assert_eq!(receive(&mut device, &memory, &all, 3), Ok(vec![60]));
    assert_eq!(memory.u16(TAIL).load(Acquire), 3, "the buffers are returned");
    all.clear();
    assert_eq!(receive(&mut device, &memory, &all, 3), Ok(vec![]));
}

#[test]
fn a_server_does_not_choose_the_buffers_of_its_client() {
    let (mut device, memory) = client();
    assert_eq!(memory.u16(TO_CLIENT + HEAD).load(Acquire), SIZE, "all buffers are free");
    let own = BufferDescriptor::read(&memory, TO_CLIENT, 0).offset;
    memory.write(own as usize, &[7; 60]);
    let anywhere = BufferDescriptor { region: 9, ..buffer(0, 60, u32::MAX) };
    assert_eq!(receive(&mut device, &memory, &[anywhere], 1), Ok(vec![60]));
    // The descriptor is restored, and the buffer is free again.
    assert_eq!(BufferDescriptor::read(&memory, TO_CLIENT, 0), buffer(0, 2048, own));
    assert_eq!(memory.u16(TO_CLIENT + HEAD).load(Acquire), SIZE + 1);

    let (mut device, memory) = client();
    let all = [buffer(0, 2049, own)];
    assert_eq!(receive(&mut device, &memory, &all, 1), Err(RingFault::Descriptor));
    let (mut device, memory) = client();
    assert_eq!(receive(&mut device, &memory, &[], SIZE + 1), Err(RingFault::Index));
}

#[test]
fn next_of_a_used_descriptor_is_cleared() {
    let (mut device, memory) = server();
    let all = [buffer(NEXT, 60, BUFFERS), buffer(0, 60, BUFFERS)];
    assert_eq!(receive(&mut device, &memory, &all, 2), Ok(vec![120]));
    // DPDK uses the slot again, and leaves the flags as they are.
    assert_eq!(BufferDescriptor::read(&memory, 0, 0), buffer(0, 60, BUFFERS));
}

#[test]
fn notifications_are_masked_while_the_ring_has_frames() {
    let (mut device, memory) = server();
    let all = [buffer(0, 60, BUFFERS); 2];
    let flags = || memory.u16(FLAGS).load(Acquire);
    assert_eq!(flags(), 0);
    for (slot, descriptor) in all.iter().enumerate() {
        descriptor.write(&memory, 0, slot as u16);
    }
    memory.u16(HEAD).store(2, Release);
    let (mut pool, mut out) = (Pool::default(), Batch::new());
    let mut receive = |max| {
        device.receive(&mut MemifCounters::default(), &mut pool, &mut out, max).expect("valid");
        device.has_more()
    };
    assert!(receive(1));
    assert_eq!(flags(), MASK_INTERRUPT);
    assert!(!receive(2));
    assert_eq!(flags(), 0);
}

#[test]
fn invalid_free_buffers_of_a_client_are_recognized() {
    let end = LEN as u32;
    let cases = [
        (buffer(0, 64, end - 64), 1, Ok((1, RingSpace::Done))),
        (buffer(NEXT, 64, BUFFERS), 1, Ok((1, RingSpace::Done))),
        (buffer(0, 63, BUFFERS), 1, Ok((0, RingSpace::Full))),
        (buffer(0, 64, BUFFERS), 0, Ok((0, RingSpace::Full))),
        (buffer(0, 0, BUFFERS), 1, Err(RingFault::Descriptor)),
        (buffer(0, 64, end - 63), 1, Err(RingFault::Descriptor)),
        (buffer(0, u32::MAX, BUFFERS), 1, Err(RingFault::Descriptor)),
        (buffer(0, 64, BUFFERS), SIZE + 1, Err(RingFault::Index)),
    ];
    for (n, (descriptor, head, wanted)) in cases.into_iter().enumerate() {
        let (mut device, memory) = server();
        descriptor.write(&memory, TO_CLIENT, 0);
        memory.u16(TO_CLIENT + HEAD).store(head, Release);
        let (mut counters, mut pool) = (MemifCounters::default(), Pool::default());
        let mut batch = Batch::new();
        batch.push_back(pool.take(64));
        batch[0].push_back(64).expect("room").fill(5);
        assert_eq!(device.send(&mut counters, &mut pool, &mut batch), wanted, "case {n}");
        assert_eq!(device.publish(), wanted == Ok((1, RingSpace::Done)));
        if wanted == Ok((1, RingSpace::Done)) {
            let sent = BufferDescriptor::read(&memory, TO_CLIENT, 0);
            assert_eq!(sent, buffer(0, 64, descriptor.offset));
            let mut bytes = [0; 64];
            memory.read(descriptor.offset as usize, &mut bytes);
            assert_eq!(bytes, [5; 64]);
        }
    }
}

fn descriptor() -> impl Strategy<Value = BufferDescriptor> {
    let offset = prop_oneof![8 => 0..LEN as u32, 1 => any::<u32>()];
    let len = prop_oneof![8 => 0u32..3000, 1 => any::<u32>()];
    (0u16..4, prop_oneof![9 => Just(0u16), 1 => any::<u16>()], len, offset)
        .prop_map(|(flags, region, len, offset)| BufferDescriptor { flags, region, len, offset })
}

proptest! {
    /// A device with an arbitrary peer neither panics nor exceeds its limits.
    #[test]
    fn arbitrary_rings_are_harmless(
        is_server in any::<bool>(),
        tables in prop::collection::vec(prop::collection::vec(descriptor(), usize::from(SIZE)), 2),
        indices in prop::collection::vec(0..SIZE + 2, 2),
        frames in prop::collection::vec(0usize..5000, 1..6),
    ) {
        let (mut device, memory) = if is_server { server() } else { client() };
        let index = if is_server { HEAD } else { TAIL };
        for (ring, (table, value)) in [0, TO_CLIENT].into_iter().zip(tables.iter().zip(indices)) {
            for (slot, descriptor) in table.iter().enumerate() {
                descriptor.write(&memory, ring, slot as u16);
            }
            memory.u16(ring + index).store(value, Release);
        }
        let (mut counters, mut pool, mut out) =
            (MemifCounters::default(), Pool::default(), Batch::new());
        let received = device.receive(&mut counters, &mut pool, &mut out, 64);
        prop_assert!(received.is_err() || received == Ok(out.len()));
        prop_assert!(out.len() <= usize::from(SIZE));
        prop_assert!(out.iter().all(|packet| (1..=Pool::LARGE).contains(&packet.len())));
        for len in frames {
            let mut packet = pool.take(len);
            packet.push_back(len).expect("room").fill(7);
            out.push_back(packet);
        }
        let offered = out.len();
        if let Ok((taken, _)) = device.send(&mut counters, &mut pool, &mut out) {
            prop_assert_eq!(taken + out.len(), offered);
        }
        device.publish();
    }
}
