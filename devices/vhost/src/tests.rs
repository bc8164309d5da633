//! Tests with a front end that drives the virtqueues itself, over a real socket.

mod guest;
mod hostile;

use std::os::fd::AsFd;

use towpath_pool::{Checksum, Meta, Port, Protocol, Segmentation};
use towpath_shm::Mapping;

use crate::{OpenError, RX, RegionSpec, TX, VhostPort};
use guest::{
    BUFFERS, EVENT_INDEX, GUEST_OFFLOADS, MEMORY, MERGEABLE, PROTOCOL, SIZE, TestGuest, TestHost,
    VERSION_1, is_ready,
};

/// Length of a virtio header, and one without offloads.
const HEADER_LEN: usize = 12;
const PLAIN: [u8; HEADER_LEN] = [0; HEADER_LEN];

/// Builds a frame with TCP over IPv4 and `payload` bytes, and the metadata of segments of `size`.
fn tcp(payload: usize, size: u16) -> (Vec<u8>, Meta) {
    let mut frame = vec![0; 54];
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&((40 + payload) as u16).to_be_bytes());
    (frame[22], frame[23], frame[46]) = (64, 6, 5 << 4);
    frame.extend((0..payload).map(|n| n as u8));
    let checksum = Checksum::Partial { start: 34, offset: 16 };
    let segmentation = Segmentation { protocol: Protocol::Tcp4, size, header_len: 54 };
    (frame, Meta { checksum, segmentation: Some(segmentation), ..Meta::default() })
}

#[test]
fn frames_pass_in_both_directions() {
    let mut host = TestHost::new("both");
    let mut guest = TestGuest::start(&mut host, VERSION_1);
    guest.transmit(BUFFERS, &PLAIN, &[1; 60]);
    let got = host.recv();
    assert_eq!(got.len(), 1);
    assert_eq!((got[0].linear(), got[0].meta.arrival_ns), (&[1; 60][..], 1));
    assert_eq!(guest.take_used(TX), [(0, 0)]);

    let buffers = [BUFFERS + 4096, BUFFERS + 8192];
    let heads = buffers.map(|at| guest.post(RX, &[(at, 2048)]));
    let frames = [host.packet(&[2; 60]), host.packet(&[3; 1514])];
    assert!(host.send(frames).is_empty());
    assert_eq!(guest.take_used(RX), [(heads[0], HEADER_LEN + 60), (heads[1], HEADER_LEN + 1514)]);
    assert_eq!(guest.read(buffers[0] + HEADER_LEN, 60), [2; 60]);
    assert_eq!(guest.read(buffers[1] + HEADER_LEN, 1514), [3; 1514]);
    // The header of virtio 1 has the number of chains also if the guest does not merge them.
    assert_eq!(guest.read(buffers[0] + 10, 2), [1, 0]);
    let counters = host.port.counters();
    assert_eq!((counters.rx_frames, counters.tx_frames, counters.tx_bytes), (1, 2, 60 + 1514));
}

#[test]
fn large_frames_stay_one_segment() {
    let mut host = TestHost::new("large");
    let features = VERSION_1 | MERGEABLE | EVENT_INDEX | GUEST_OFFLOADS;
    let mut guest = TestGuest::start(&mut host, features);
    let (frame, meta) = tcp(64_000, 1448);
    let header = towpath_virtio::emit(&meta, &frame).expect("valid");
    guest.transmit(BUFFERS, &header, &frame);
    let got = host.recv();
    assert_eq!((got.len(), got[0].linear()), (1, &*frame));
    assert_eq!(
        (got[0].meta.checksum, got[0].meta.segmentation),
        (meta.checksum, meta.segmentation)
    );

    for n in 0..40 {
        guest.post(RX, &[(BUFFERS + n * 2048, 2048)]);
    }
    assert!(host.send(got).is_empty());
    let used = guest.take_used(RX);
    assert_eq!(used.len(), (frame.len() + HEADER_LEN).div_ceil(2048));
    let lens = used.iter().map(|(_, len)| *len);
    assert_eq!(lens.sum::<usize>(), frame.len() + HEADER_LEN);
    let bytes = guest.read(BUFFERS, frame.len() + HEADER_LEN);
    assert_eq!(&bytes[..10], &header[..10]);
    assert_eq!(bytes[10..12], (used.len() as u16).to_le_bytes());
    assert_eq!(bytes[HEADER_LEN..], frame);
}

#[test]
fn a_tail_in_a_fifo_is_copied_to_the_guest() {
    use std::sync::Arc;
    use towpath_pool::{Fragments, Stretch};
    let mut host = TestHost::new("tail");
    let mut guest = TestGuest::start(&mut host, VERSION_1 | MERGEABLE);
    let fifo = Arc::new(Mapping::private(8192).expect("memory"));
    let bytes: Vec<u8> = (0..8192).map(|n| (n / 3) as u8).collect();
    fifo.write(0, &bytes);
    let mut packet = host.packet(&[9; 54]);
    packet.tail =
        Fragments::new(Stretch::new(&fifo, 6000, 2192), Some(Stretch::new(&fifo, 0, 1000)));
    for n in 0..4 {
        guest.post(RX, &[(BUFFERS + n * 1024, 1024)]);
    }
    assert!(host.send([packet]).is_empty());
    let wanted = [&[9; 54], &bytes[6000..], &bytes[..1000]].concat();
    assert_eq!(guest.read(BUFFERS + HEADER_LEN, wanted.len()), wanted);
    assert_eq!(guest.take_used(RX).len(), 4);
}

#[test]
fn a_guest_without_offloads_gets_finished_segments() {
    let mut host = TestHost::new("finished");
    let mut guest = TestGuest::start(&mut host, VERSION_1);
    for n in 0..4 {
        guest.post(RX, &[(BUFFERS + n * 2048, 2048)]);
    }
    let (frame, meta) = tcp(4000, 1400);
    let mut packet = host.packet(&frame);
    packet.meta = meta;
    let plain = host.packet(&[7; 60]);
    assert!(host.send([packet, plain]).is_empty());
    let lens: Vec<_> = guest.take_used(RX).iter().map(|(_, len)| len - HEADER_LEN).collect();
    assert_eq!(lens, [54 + 1400, 54 + 1400, 54 + 1200, 60]);
    assert_eq!(guest.read(BUFFERS, 10), [0; 10]);
    // The checksum field contains no longer the sum of the pseudo-header alone.
    assert_ne!(guest.read(BUFFERS + HEADER_LEN + 50, 2), frame[50..52]);
    assert_eq!(host.port.counters().tx_finished, 1);
}

#[test]
fn segments_wait_for_buffers_without_further_frames() {
    let mut host = TestHost::new("segments");
    let mut guest = TestGuest::start(&mut host, VERSION_1);
    guest.post(RX, &[(BUFFERS, 2048)]);
    let (frame, meta) = tcp(4000, 1400);
    let mut packet = host.packet(&frame);
    packet.meta = meta;
    assert!(host.send([packet]).is_empty());
    assert_eq!(guest.take_used(RX).len(), 1);
    guest.post(RX, &[(BUFFERS + 2048, 2048)]);
    guest.post(RX, &[(BUFFERS + 4096, 2048)]);
    host.recv();
    assert_eq!(guest.take_used(RX).len(), 2);
    assert!(!host.port.blocked());
}

#[test]
fn segments_for_an_earlier_driver_do_not_block_the_next() {
    let mut host = TestHost::new("stale");
    // The first driver computes checksums (GUEST_CSUM), and the second one does not.
    let mut guest = TestGuest::start(&mut host, VERSION_1 | 1 << 1);
    let (frame, meta) = tcp(4000, 1400);
    let mut packet = host.packet(&frame);
    packet.meta = meta;
    assert!(host.send([packet]).is_empty());
    assert!(host.port.blocked());
    guest.request(2, &[VERSION_1 | PROTOCOL], &[]);
    guest.run(&mut host);
    guest.post(RX, &[(BUFFERS, 2048)]);
    let plain = host.packet(&[7; 60]);
    assert!(host.send([plain]).is_empty());
    assert_eq!(guest.take_used(RX), [(0, HEADER_LEN + 60)]);
    assert_eq!(host.port.counters().tx_no_guest, 3);
}

#[test]
fn frames_wait_for_buffers_of_the_guest() {
    let mut host = TestHost::new("wait");
    for features in [VERSION_1 | MERGEABLE, VERSION_1 | MERGEABLE | EVENT_INDEX] {
        let mut guest = TestGuest::start(&mut host, features);
        guest.post(RX, &[(BUFFERS, 1024)]);
        let frames = [host.packet(&[1; 3000]), host.packet(&[2; 60])];
        let mut left = host.send(frames);
        assert_eq!(left.len(), 2);
        assert!(host.port.blocked());
        host.recv();
        // Each further buffer wakes the stack until there are enough.
        for n in 1..4 {
            assert!(!is_ready(host.port.wake_fd().expect("a descriptor")));
            guest.post(RX, &[(BUFFERS + n * 1024, 1024)]);
            assert!(is_ready(host.port.wake_fd().expect("a descriptor")), "buffer {n}");
            host.recv();
            left = host.send(left);
        }
        assert!(left.is_empty() && !host.port.blocked());
        assert_eq!(guest.take_used(RX).len(), 4);
        assert_eq!(guest.read(BUFFERS + HEADER_LEN, 3000), [1; 3000]);
        drop(guest);
        host.recv();
    }
}

#[test]
fn frames_beyond_all_buffers_are_dropped() {
    let mut host = TestHost::new("beyond");
    let mut guest = TestGuest::start(&mut host, VERSION_1 | MERGEABLE);
    for n in 0..usize::from(SIZE) {
        guest.post(RX, &[(BUFFERS + n * 100, 100)]);
    }
    let frames = [host.packet(&[1; 9000]), host.packet(&[2; 60])];
    assert!(host.send(frames).is_empty());
    let counters = host.port.counters();
    assert_eq!((counters.tx_too_long, counters.tx_frames), (1, 1));
    assert_eq!(guest.take_used(RX).len(), 1);
}

#[test]
fn notifications_are_suppressed_while_the_device_polls() {
    let mut host = TestHost::new("suppressed");
    let mut guest = TestGuest::start(&mut host, VERSION_1 | EVENT_INDEX);
    guest.want_interrupt_after(TX, 3);
    host.recv();
    assert!(!is_ready(host.port.wake_fd().expect("a descriptor")));
    guest.transmit(BUFFERS, &PLAIN, &[1; 60]);
    assert!(is_ready(host.port.wake_fd().expect("a descriptor")));
    // A poll for one frame does not ask for notifications, because more frames may be there.
    host.port.looked(true);
    let mut out = towpath_pool::Batch::new();
    assert_eq!(host.port.poll(1, &mut host.pool, &mut out, 1), 1);
    assert_eq!(host.port.next_timeout_ns(), Some(0));
    guest.transmit(BUFFERS + 4096, &PLAIN, &[2; 60]);
    assert!(!is_ready(host.port.wake_fd().expect("a descriptor")));
    assert_eq!(host.recv().len(), 1);
    assert_eq!(host.port.next_timeout_ns(), None);
    assert_eq!(guest.interrupts(TX), 1, "the one of a new connection");
    guest.transmit(BUFFERS + 8192, &PLAIN, &[3; 60]);
    assert!(is_ready(host.port.wake_fd().expect("a descriptor")));
    assert_eq!(host.recv().len(), 1);
    assert_eq!(guest.interrupts(TX), 1);
    assert_eq!(host.port.counters().interrupts, 1);
}

#[test]
fn a_header_that_contradicts_its_frame_costs_only_the_frame() {
    let mut host = TestHost::new("header");
    let mut guest = TestGuest::start(&mut host, VERSION_1);
    let mut wrong = PLAIN;
    (wrong[0], wrong[6]) = (1, 200);
    guest.transmit(BUFFERS, &wrong, &[1; 60]);
    guest.post(TX, &[(BUFFERS, HEADER_LEN)]);
    guest.transmit(BUFFERS + 4096, &PLAIN, &[2; 60]);
    assert_eq!(host.recv().len(), 1);
    assert_eq!(host.port.counters().rx_malformed, 2);
    assert_eq!(guest.take_used(TX).len(), 3);
}

#[test]
fn frames_with_too_many_segments_or_of_udp_are_dropped() {
    let mut host = TestHost::new("tiny");
    let mut guest = TestGuest::start(&mut host, VERSION_1);
    for (size, is_accepted) in [(1, false), (36, true)] {
        let (frame, meta) = tcp(60_000, size);
        guest.transmit(BUFFERS, &towpath_virtio::emit(&meta, &frame).expect("valid"), &frame);
        assert_eq!(host.recv().len(), usize::from(is_accepted));
    }
    let segmentation = Segmentation { protocol: Protocol::Udp, size: 1400, header_len: 42 };
    let checksum = Checksum::Partial { start: 34, offset: 6 };
    let meta = Meta { checksum, segmentation: Some(segmentation), ..Meta::default() };
    let header = towpath_virtio::emit(&meta, &[0; 3000]).expect("valid");
    guest.transmit(BUFFERS, &header, &[0; 3000]);
    assert!(host.recv().is_empty());
    assert_eq!(host.port.counters().rx_malformed, 2);
}

#[test]
fn a_legacy_driver_has_a_short_header() {
    let mut host = TestHost::new("legacy");
    let mut guest = TestGuest::start(&mut host, 0);
    guest.transmit(BUFFERS, &PLAIN[..10], &[1; 60]);
    assert_eq!(host.recv()[0].linear(), [1; 60]);
    guest.post(RX, &[(BUFFERS + 4096, 10), (BUFFERS + 8192, 1514)]);
    let frame = host.packet(&[2; 60]);
    assert!(host.send([frame]).is_empty());
    assert_eq!(guest.take_used(RX), [(0, 70)]);
    assert_eq!(guest.read(BUFFERS + 8192, 60), [2; 60]);
}

#[test]
fn a_guest_restarts_and_its_virtqueues_continue() {
    let mut host = TestHost::new("restart");
    let mut guest = TestGuest::start(&mut host, VERSION_1);
    for round in 0..3 {
        guest.transmit(BUFFERS, &PLAIN, &[round; 60]);
        assert_eq!(host.recv()[0].linear(), [round; 60]);
        assert_eq!(guest.take_used(TX).len(), 1);
        // GET_VRING_BASE stops the virtqueue.
        let base = guest.ask(&mut host, 11, &[TX as u64]);
        assert_eq!(base >> 32, u64::from(round) + 1);
        guest.start_queue(TX, (base >> 32) as u16);
        host.recv();
    }
    guest.run(&mut host);
    guest.transmit(BUFFERS, &PLAIN, &[9; 60]);
    assert_eq!(host.recv()[0].linear(), [9; 60]);
}

#[test]
fn front_ends_disconnect_and_come_back() {
    let mut host = TestHost::new("again");
    for round in 1..=3 {
        let mut guest = TestGuest::start(&mut host, VERSION_1);
        guest.transmit(BUFFERS, &PLAIN, &[1; 60]);
        assert_eq!(host.recv().len(), 1);
        assert_eq!(host.port.counters().front_ends, round);
        drop(guest);
        assert!(is_ready(host.port.wake_fd().expect("a descriptor")));
        assert!(host.recv().is_empty());
        assert!(!is_ready(host.port.wake_fd().expect("a descriptor")));
        let frame = host.packet(&[1; 60]);
        assert!(host.send([frame]).is_empty());
        assert_eq!(host.port.counters().tx_no_guest, round);
    }
    let error = VhostPort::open(&host.socket(), drop).err();
    assert!(matches!(error, Some(OpenError::InUse(_))), "{error:?}");
}

#[test]
fn memory_is_added_and_removed_while_the_device_runs() {
    let mut host = TestHost::new("slots");
    let mut guest = TestGuest::start(&mut host, VERSION_1);
    assert!(guest.ask(&mut host, 36, &[]) >= 8);
    let more = Mapping::shared("more", 1 << 16).expect("memory");
    let file = || more.file().expect("shared").try_clone().expect("a descriptor");
    let region = [0, 0x9000_0000, 1 << 16, 0x1000, 0];
    assert_eq!(guest.ask_acknowledged(&mut host, 37, &region, &[file()]), 0);
    more.write(100, &[5; 60]);
    // The header is in the first region, and the frame in the second one.
    guest.memory.write(BUFFERS, &PLAIN);
    guest.describe(TX, 0, (TestGuest::region().guest + BUFFERS as u64, 12, guest::NEXT, 1));
    guest.describe(TX, 1, (0x9000_0000 + 100, 60, 0, 0));
    guest.make_available(TX, 0);
    assert_eq!(host.recv()[0].linear(), [5; 60]);
    assert_eq!(guest.ask_acknowledged(&mut host, 38, &region, &[]), 0);
    guest.make_available(TX, 0);
    assert!(host.recv().is_empty());
    assert_eq!(host.port.counters().broken_queues, 1);
}

#[test]
fn memory_of_huge_pages_is_refused() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    // Some kernels have no huge pages.
    let Ok(file) = memfd_create("huge", flags) else { return };
    if ftruncate(&file, MEMORY as u64).is_err() {
        return;
    }
    fcntl_add_seals(&file, SealFlags::SHRINK).expect("a memfd");
    let mut memory = crate::GuestMemory::default();
    let error = memory.add(TestGuest::region(), file).expect_err("huge pages");
    assert!(matches!(error, crate::GuestMemoryError::HugePages), "{error}");
}

/// Files of guest memory that are refused, with a part of the reason.
#[test]
fn memory_that_could_raise_sigbus_is_refused() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("unsealed", flags).expect("a memfd");
    ftruncate(&file, MEMORY as u64).expect("a memfd");
    // A file without pages may be longer than the address space.
    let long = memfd_create("long", flags).expect("a memfd");
    ftruncate(&long, 1 << 46).expect("a memfd");
    fcntl_add_seals(&long, SealFlags::SHRINK).expect("a memfd");
    let short = Mapping::shared("short", 4096).expect("memory");
    let short = || short.file().expect("shared").try_clone().expect("a descriptor");
    let RegionSpec { guest: address, user, .. } = TestGuest::region();
    let cases = [
        ("NotSealed", MEMORY as u64, 0, file),
        ("TooLong", 1 << 46, 0, long),
        ("Map", 8192, 0, short()),
        ("Map", 4096, 4096, short()),
        ("Invalid", u64::MAX, 0, short()),
        ("Invalid", 0, 0, short()),
        ("Invalid", 4096, u64::MAX, short()),
    ];
    for (reason, len, offset, file) in cases {
        let mut host = TestHost::new(&format!("sigbus-{reason}-{len}-{offset}"));
        let guest = TestGuest::connect(&host.socket());
        host.recv();
        guest.request(16, &[1 << 3], &[]);
        let payload = [1, address, len, user, offset];
        assert_ne!(guest.ask_acknowledged(&mut host, 5, &payload, &[file]), 0);
        assert!(guest.is_hung_up());
        let told = host.told();
        assert!(told.iter().any(|it| it.contains(reason)), "{reason}: {told:?}");
    }
}

#[test]
fn requests_that_are_refused_end_the_connection_with_a_reason() {
    let cases: [(&str, u32, &[u64]); 8] = [
        ("Migration", 6, &[4096, 0]),
        ("Unsupported(99)", 99, &[]),
        ("Malformed(2)", 2, &[]),
        ("Features", 2, &[1 << 26]),
        ("Features", 16, &[1 << 1]),
        ("NoQueue(2)", 18, &[2 | 1 << 32]),
        ("Descriptors", 12, &[0]),
        ("NoRegion", 38, &[0, 1, 2, 3, 4]),
    ];
    for (reason, number, payload) in cases {
        let mut host = TestHost::new(&format!("refused-{number}-{reason}"));
        let guest = TestGuest::connect(&host.socket());
        host.recv();
        guest.request(number, payload, &[]);
        host.recv();
        assert!(guest.is_hung_up(), "{reason}");
        let told = host.told();
        assert!(told.iter().any(|it| it.contains(reason)), "{reason}: {told:?}");
    }
}

#[test]
fn a_flood_of_requests_does_not_hold_the_stack() {
    let mut host = TestHost::new("flood");
    let guest = TestGuest::connect(&host.socket());
    host.recv();
    // SET_OWNER has no answer.
    (0..100).for_each(|_| guest.request(3, &[], &[]));
    for is_left in [true, false] {
        host.recv();
        assert_eq!(is_ready(host.port.wake_fd().expect("a descriptor")), is_left);
    }
}

#[test]
fn only_eventfds_are_accepted_for_notifications() {
    for number in [12, 13, 14] {
        let mut host = TestHost::new(&format!("eventfd-{number}"));
        let guest = TestGuest::connect(&host.socket());
        host.recv();
        let socket = guest.socket.try_clone().expect("a descriptor");
        guest.request(number, &[0], &[socket.into()]);
        host.recv();
        assert!(guest.is_hung_up());
        let told = host.told();
        assert!(told.iter().any(|it| it.contains("NoEventfd")), "{told:?}");
    }
}

#[test]
fn messages_may_arrive_in_pieces() {
    use std::io::{Read, Write};
    let mut host = TestHost::new("pieces");
    let mut guest = TestGuest::connect(&host.socket());
    host.recv();
    let request: Vec<u8> = [1u32, 1, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    for byte in &request {
        guest.socket.write_all(&[*byte]).expect("connected");
        host.recv();
    }
    let mut answer = [0; 20];
    guest.socket.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[12..], crate::OFFERED.to_ne_bytes());
}

#[test]
fn an_invalid_chain_stops_the_virtqueue_until_a_reset() {
    let mut host = TestHost::new("broken");
    let mut guest = TestGuest::start(&mut host, VERSION_1);
    guest.describe(TX, 0, (0, 12, 0, 0));
    guest.make_available(TX, 0);
    assert!(host.recv().is_empty());
    assert!(is_ready(guest.errors[TX].as_fd()));
    let told = host.told();
    assert!(told.iter().any(|it| it.contains("Broken(Chain)")), "{told:?}");
    guest.transmit(BUFFERS, &PLAIN, &[1; 60]);
    assert!(host.recv().is_empty());
    guest.run(&mut host);
    guest.transmit(BUFFERS, &PLAIN, &[2; 60]);
    assert_eq!(host.recv()[0].linear(), [2; 60]);
    assert_eq!(host.port.counters().broken_queues, 1);
}
