//! Tests a shaped port in virtual time.

use std::os::fd::BorrowedFd;

use towpath_link::{Chance, Dice, LinkConfig, Loss, Probability};
use towpath_pool::{Batch, Checksum, LinkType, Offloads, Pool, Port, Protocol, Segmentation};

use super::Shaped;

const MS: u64 = 1_000_000;

/// A device that accepts a limited number of packets, and has a queue of received packets.
#[derive(Default)]
struct Device {
    room: usize,
    sent: Batch,
    arrived: Batch,
}

impl Port for Device {
    fn poll(&mut self, _: u64, _: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let n = self.arrived.len().min(max);
        out.extend(self.arrived.drain(..n));
        n
    }

    fn submit(&mut self, _: u64, _: &mut Pool, batch: &mut Batch) -> usize {
        let n = batch.len().min(self.room - self.sent.len());
        self.sent.extend(batch.drain(..n));
        n
    }

    fn offloads(&self) -> Offloads {
        Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true }
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ip
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn blocked(&self) -> bool {
        self.sent.len() == self.room
    }
}

struct Bench {
    port: Shaped<Device>,
    pool: Pool,
    out: Batch,
}

impl Bench {
    fn new(egress: LinkConfig, ingress: LinkConfig) -> Self {
        let device = Device { room: 1000, ..Device::default() };
        let port = Shaped::new(device, [egress, ingress], Dice::new(5, 0));
        Self { port, pool: Pool::default(), out: Batch::new() }
    }

    fn send(&mut self, now_ns: u64, bytes: usize) {
        let mut packet = self.pool.take(bytes);
        packet.push_back(bytes).unwrap().fill(0);
        assert_eq!(self.port.submit(now_ns, &mut self.pool, &mut Batch::from([packet])), 1);
    }

    fn arrive(&mut self, bytes: usize) {
        let mut packet = self.pool.take(bytes);
        packet.push_back(bytes).unwrap().fill(0);
        packet.meta.arrival_ns = 1;
        self.port.port.arrived.push_back(packet);
    }

    fn poll(&mut self, now_ns: u64) -> usize {
        self.port.poll(now_ns, &mut self.pool, &mut self.out, 64)
    }

    fn sent(&self) -> usize {
        self.port.port.sent.len()
    }
}

fn delay(delay_ns: u64) -> LinkConfig {
    LinkConfig { delay_ns, ..LinkConfig::default() }
}

#[test]
fn each_way_has_its_delay_and_the_arrival_is_at_the_end_of_the_link() {
    let mut bench = Bench::new(delay(50 * MS), delay(20 * MS));
    assert_eq!(bench.port.next_timeout_ns(), None);
    bench.send(0, 100);
    bench.arrive(100);
    assert_eq!((bench.poll(0), bench.sent()), (0, 0));
    assert_eq!(bench.port.next_timeout_ns(), Some(20 * MS));
    assert_eq!((bench.poll(20 * MS), bench.sent()), (1, 0));
    assert_eq!(bench.out[0].meta.arrival_ns, 20 * MS);
    assert_eq!(bench.port.next_timeout_ns(), Some(50 * MS));
    assert_eq!((bench.poll(50 * MS), bench.sent()), (0, 1));
    assert_eq!(bench.port.next_timeout_ns(), None);
}

#[test]
fn packets_on_their_way_out_are_undelivered_and_those_on_their_way_in_are_not() {
    let mut bench = Bench::new(delay(MS), delay(MS));
    bench.send(0, 100);
    bench.arrive(300);
    bench.poll(0);
    assert_eq!(bench.port.undelivered(), 100);
    bench.port.port.room = 0;
    bench.poll(MS);
    assert_eq!(bench.port.undelivered(), 100, "the port has not taken the packet");
    bench.port.port.room = 1;
    bench.poll(MS);
    assert_eq!((bench.port.undelivered(), bench.sent()), (0, 1));
}

#[test]
fn a_full_port_makes_packets_wait_and_wakes_for_them_itself() {
    let mut bench = Bench::new(delay(MS), delay(MS));
    bench.port.port.room = 2;
    (0..100).for_each(|_| bench.send(0, 100));
    bench.poll(MS);
    assert_eq!(bench.sent(), 2);
    assert_eq!((bench.port.blocked(), bench.port.next_timeout_ns()), (true, None));
    bench.port.port.room = 50;
    assert_eq!(bench.port.next_timeout_ns(), Some(0), "the port has room again");
    bench.poll(2 * MS);
    bench.port.port.room = 1000;
    bench.poll(3 * MS);
    assert_eq!((bench.sent(), bench.port.stats()[0].delivered), (100, 100));
    assert_eq!(bench.port.next_timeout_ns(), None);
}

#[test]
fn the_limit_drops_packets_and_their_buffers_are_used_again() {
    let loss = Loss::Random(Chance::independent(Probability::ALWAYS));
    let mut bench = Bench::new(LinkConfig { loss, ..delay(0) }, delay(MS));
    (0..2000).for_each(|_| bench.send(0, 100));
    assert_eq!((bench.pool.allocated(), bench.port.stats()[0].lost), (1, 2000));
    for _ in 0..1100 {
        bench.arrive(100);
        bench.poll(0);
    }
    let [_, ingress] = bench.port.stats();
    assert_eq!((ingress.overlimit, bench.poll(MS)), (100, 64));
    assert_eq!(bench.port.next_timeout_ns(), Some(MS), "more is due");
}

#[test]
fn a_packet_that_stands_for_several_is_cut_in_both_directions() {
    let mut bench = Bench::new(delay(0), LinkConfig { rate: Some(8_000_000), ..delay(0) });
    let large = |pool: &mut Pool| {
        let mut packet = pool.take(3040);
        let bytes = packet.push_back(3040).unwrap();
        bytes.fill(0);
        (bytes[0], bytes[9], bytes[32]) = (0x45, 6, 0x50);
        bytes[2..4].copy_from_slice(&3040u16.to_be_bytes());
        packet.meta.checksum = Checksum::Partial { start: 20, offset: 16 };
        packet.meta.segmentation =
            Some(Segmentation { protocol: Protocol::Tcp4, size: 1000, header_len: 40 });
        packet
    };
    let packet = large(&mut bench.pool);
    assert_eq!(bench.port.submit(0, &mut bench.pool, &mut Batch::from([packet])), 1);
    assert_eq!(bench.port.port.sent.iter().map(|it| it.len()).collect::<Vec<_>>(), [1040; 3]);
    let packet = large(&mut bench.pool);
    bench.port.port.arrived.push_back(packet);
    // A byte takes a microsecond.
    assert_eq!([0, 1040, 2080, 3120].map(|us| bench.poll(us * 1000)), [0, 1, 1, 1]);
}

#[test]
fn the_port_shows_through() {
    let bench = Bench::new(delay(0), delay(0));
    assert_eq!(bench.port.offloads(), bench.port.port.offloads());
    assert_eq!(bench.port.link_type(), LinkType::Ip);
    assert!(bench.port.wake_fd().is_none() && !bench.port.is_gone() && !bench.port.blocked());
}
