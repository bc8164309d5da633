//! Virtqueues whose driver writes arbitrary descriptors and indices.

use proptest::prelude::*;
use towpath_pool::{Batch, Pool};
use towpath_shm::Mapping;

use crate::{
    GuestMemory, NetDevice, OFFERED, RX, RegionSpec, RingAddresses, RingError, RingSetup, TX,
    VhostCounters,
};

const SIZE: u16 = 8;
const LEN: usize = 1 << 16;
const GUEST: u64 = 0x1000;
/// Places of the parts of both virtqueues. The table of the second one follows the first.
const TABLE: usize = 0x200;
const AVAILABLE: usize = 0x800;
const USED: usize = 0xa00;
const DISTANCE: usize = 0x2000;

/// A descriptor: address, length, flags, next.
type ChainFields = (u64, u32, u16, u16);

/// A device, and the memory of its guest as the driver sees it.
fn device(features: u64) -> (NetDevice, Mapping) {
    let driver = Mapping::shared("guest", LEN).expect("memory");
    let file = driver.file().expect("shared").try_clone().expect("a descriptor");
    let mut memory = GuestMemory::default();
    // Two regions that adjoin for the guest, in other order in the file.
    let half = LEN as u64 / 2;
    for (guest, offset) in [(GUEST, 0), (GUEST + half, half)] {
        let spec = RegionSpec { guest, len: half, user: guest, offset };
        memory.add(spec, file.try_clone().expect("a descriptor")).expect("valid");
    }
    let mut device = NetDevice::new(features, memory);
    for queue in [RX, TX] {
        device.start(queue, setup(queue)).expect("valid");
    }
    (device, driver)
}

fn setup(queue: usize) -> RingSetup {
    let place = |part: usize| GUEST + (queue * DISTANCE + part) as u64;
    let (descriptors, used, available) = (place(TABLE), place(USED), place(AVAILABLE));
    let addresses = RingAddresses { descriptors, used, available };
    RingSetup { size: SIZE, addresses, ..RingSetup::default() }
}

fn describe(driver: &Mapping, at: usize, fields: ChainFields) {
    driver.write(at, &fields.0.to_le_bytes());
    driver.write(at + 8, &fields.1.to_le_bytes());
    driver.write(at + 12, &fields.2.to_le_bytes());
    driver.write(at + 14, &fields.3.to_le_bytes());
}

fn table(driver: &Mapping, queue: usize, all: &[ChainFields]) {
    for (n, fields) in all.iter().enumerate() {
        describe(driver, queue * DISTANCE + TABLE + n * 16, *fields);
    }
}

fn publish(driver: &Mapping, queue: usize, heads: &[u16], index: u16) {
    let start = queue * DISTANCE + AVAILABLE;
    for (n, head) in heads.iter().enumerate() {
        driver.write(start + 4 + n * 2, &head.to_le_bytes());
    }
    driver.write(start + 2, &index.to_le_bytes());
}

/// Receives frames after the driver has written a table and made its first descriptor available.
fn receive(all: &[ChainFields], head: u16, index: u16) -> Result<Vec<Vec<u8>>, RingError> {
    let (mut device, driver) = device(OFFERED);
    table(&driver, TX, all);
    publish(&driver, TX, &[head], index);
    let (mut pool, mut out) = (Pool::default(), Batch::new());
    device.receive(&mut VhostCounters::default(), &mut pool, &mut out, 64);
    match device.take_fault(TX) {
        Some(error) => Err(error),
        None => Ok(out.iter().map(|packet| packet.linear().to_vec()).collect()),
    }
}

#[test]
fn invalid_chains_and_indices_are_recognized() {
    let buffer = GUEST + 0x6000;
    let end = GUEST + LEN as u64;
    let indirect = GUEST + 0x5000;
    let valid: [ChainFields; 2] = [(buffer, 12, 1, 1), (buffer + 12, 60, 0, 0)];
    assert_eq!(receive(&valid, 0, 1), Ok(vec![vec![0; 60]]));
    let across: [ChainFields; 1] = [(GUEST + LEN as u64 / 2 - 30, 72, 0, 0)];
    assert_eq!(receive(&across, 0, 1), Ok(vec![vec![0; 60]]));
    let chain = Err(RingError::Chain);
    let cases: [(&str, Vec<ChainFields>); 13] = [
        ("empty descriptor", vec![(buffer, 72, 1, 1), (buffer, 0, 0, 0)]),
        ("loop", vec![(buffer, 12, 1, 1), (buffer, 60, 1, 0)]),
        ("loop of one", vec![(buffer, 12, 1, 0)]),
        ("next beyond the table", vec![(buffer, 12, 1, SIZE)]),
        ("writable", vec![(buffer, 72, 2, 0)]),
        ("before the memory", vec![(GUEST - 1, 72, 0, 0)]),
        ("behind the memory", vec![(end - 71, 72, 0, 0)]),
        ("overflowing address", vec![(u64::MAX - 5, 72, 0, 0)]),
        ("overflowing length", vec![(buffer, u32::MAX, 0, 0)]),
        ("empty indirect table", vec![(indirect, 0, 4, 0)]),
        ("indirect table of a part", vec![(indirect, 24, 4, 0)]),
        ("indirect table behind the memory", vec![(end - 16, 32, 4, 0)]),
        ("indirect table with a successor", vec![(indirect, 16, 5, 0)]),
    ];
    for (name, all) in cases {
        assert_eq!(receive(&all, 0, 1), chain, "{name}");
    }
    assert_eq!(receive(&valid, SIZE, 1), Err(RingError::Index), "head");
    assert_eq!(receive(&valid, 0, SIZE + 1), Err(RingError::Index), "index that jumps");
    assert_eq!(receive(&valid, 0, u16::MAX), Err(RingError::Index), "index that goes back");
}

#[test]
fn indirect_tables_are_bounded() {
    let (mut device, driver) = device(OFFERED);
    let (buffer, indirect) = (GUEST + 0x6000, 0x5000);
    table(&driver, TX, &[(GUEST + indirect as u64, 32, 4, 0); 3]);
    describe(&driver, indirect, (buffer, 12, 1, 1));
    describe(&driver, indirect + 16, (buffer + 12, 60, 0, 0));
    let (mut counters, mut pool, mut out) =
        (VhostCounters::default(), Pool::default(), Batch::new());
    publish(&driver, TX, &[0, 1, 2], 1);
    assert_eq!(device.receive(&mut counters, &mut pool, &mut out, 64), 1);
    // An indirect descriptor within an indirect table, and a loop there.
    for fields in [(GUEST + indirect as u64, 32, 4, 0), (buffer, 60, 1, 0), (buffer, 60, 1, 2)] {
        describe(&driver, indirect + 16, fields);
        device.start(TX, setup(TX)).expect("valid");
        assert_eq!(device.receive(&mut counters, &mut pool, &mut out, 64), 0);
        assert_eq!(device.take_fault(TX), Some(RingError::Chain), "{fields:?}");
    }
}

#[test]
fn parts_outside_of_the_memory_are_refused() {
    let (mut device, _driver) = device(OFFERED);
    let good = setup(TX);
    let with = |change: fn(&mut RingAddresses)| {
        let mut setup = good;
        change(&mut setup.addresses);
        setup
    };
    let half = GUEST + LEN as u64 / 2;
    assert!(half > 0x9000 - 64, "between the regions");
    let cases = [
        with(|it| it.descriptors += 8),
        with(|it| it.available += 1),
        with(|it| it.used += 2),
        with(|it| it.descriptors = 0),
        with(|it| it.descriptors = u64::MAX - 15),
        with(|it| it.used = 0x9000 - 64),
        with(|it| it.available = 0x9000 - 4),
    ];
    for (n, setup) in cases.into_iter().enumerate() {
        assert_eq!(device.start(TX, setup), Err(RingError::Place), "case {n}");
        assert!(!device.is_running(TX));
    }
    for size in [0, 3, 2048, u16::MAX] {
        let setup = RingSetup { size, ..good };
        assert_eq!(device.start(TX, setup), Err(RingError::Size(size)));
    }
}

fn descriptor() -> impl Strategy<Value = ChainFields> {
    let address = prop_oneof![
        8 => GUEST..GUEST + LEN as u64,
        1 => any::<u64>(),
        1 => Just(GUEST + 0x5000),
    ];
    let len = prop_oneof![8 => 0u32..3000, 2 => (1u32..9).prop_map(|n| n * 16), 1 => any::<u32>()];
    (address, len, 0u16..8, 0..SIZE + 1)
}

proptest! {
    /// A device with an arbitrary driver neither panics nor exceeds its limits.
    #[test]
    fn arbitrary_virtqueues_are_harmless(
        tables in prop::collection::vec(prop::collection::vec(descriptor(), usize::from(SIZE)), 2),
        indirect in prop::collection::vec(descriptor(), 8),
        heads in prop::collection::vec(0..SIZE + 1, usize::from(SIZE)),
        index in 0..SIZE + 2,
        features in any::<u64>(),
        frames in prop::collection::vec(0usize..5000, 1..6),
    ) {
        let (mut device, driver) = device(features & OFFERED);
        for queue in [RX, TX] {
            table(&driver, queue, &tables[queue]);
            publish(&driver, queue, &heads, index);
        }
        for (n, fields) in indirect.iter().enumerate() {
            describe(&driver, 0x5000 + n * 16, *fields);
        }
        let (mut counters, mut pool, mut out) =
            (VhostCounters::default(), Pool::default(), Batch::new());
        let received = device.receive(&mut counters, &mut pool, &mut out, 64);
        prop_assert_eq!(received, out.len());
        prop_assert!(received <= usize::from(SIZE));
        prop_assert!(out.iter().all(|packet| packet.len() <= Pool::LARGE));
        for len in frames {
            let mut packet = pool.take(len);
            packet.push_back(len).expect("room").fill(7);
            out.push_back(packet);
        }
        let (taken, _) = device.send(&mut counters, &mut pool, &mut out);
        prop_assert!(taken <= 64 + 6);
        device.publish(RX);
        device.publish(TX);
    }
}
