//! Recording what passes through a [`Port`].

use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use towpath_pool::{Batch, Offloads, Packet, Pool, Port};

use crate::{Direction, Interface, LinkType, Writer};

/// Longest time that a recorded packet waits in memory, so that a reader can follow a running capture.
const FLUSH_INTERVAL_NS: u64 = 1_000_000_000;

/// A pcapng file that several ports are recorded into; clones are the same file.
///
/// Interface 0 is the stack's own loopback, of which only dropped packets are recorded; the ports
/// follow in the order of [`CaptureFile::capture`], as the stack numbers its interfaces.
#[derive(Debug, Clone)]
pub struct CaptureFile {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    /// None after an error: what follows a torn block cannot be read.
    writer: Option<Writer<Box<dyn Write + Send>>>,
    error: Option<io::Error>,
    /// Of each interface.
    links: Vec<LinkType>,
    /// Unix time minus the engine's clock.
    unix_offset_ns: u64,
    last_flush_ns: Option<u64>,
    dirty: bool,
    /// Where the tail of a packet is copied to, because a program may change it meanwhile.
    tail: Vec<u8>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("error", &self.error).finish_non_exhaustive()
    }
}

impl CaptureFile {
    /// Starts a capture that keeps at most `snaplen` bytes of each packet.
    pub fn new(out: Box<dyn Write + Send>, snaplen: u32) -> io::Result<Self> {
        let loopback = Interface { name: "lo", link_type: LinkType::Raw };
        let shared = Shared {
            writer: Some(Writer::with_snaplen(out, &[loopback], snaplen)?),
            error: None,
            links: vec![loopback.link_type],
            unix_offset_ns: 0,
            last_flush_ns: None,
            dirty: true,
            tail: Vec::new(),
        };
        Ok(Self { shared: Arc::new(Mutex::new(shared)) })
    }

    /// Records `port` under `name` from now on.
    pub fn capture<P: Port>(&self, name: &str, port: P) -> io::Result<Capture<P>> {
        let link_type = match port.link_type() {
            towpath_pool::LinkType::Ethernet => LinkType::Ethernet,
            towpath_pool::LinkType::Ip => LinkType::Raw,
        };
        let mut shared = self.lock();
        let writer =
            shared.writer.as_mut().ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let iface = writer.add_interface(&Interface { name, link_type })?;
        shared.links.push(link_type);
        drop(shared);
        Ok(Capture { file: self.clone(), iface, port, before: 0 })
    }

    /// Records a packet that the stack dropped, received on or meant for interface `iface`, with the
    /// reason as its comment. What was received has been recorded before, as it arrived.
    ///
    /// `bytes` start with the link header, or with the IP header of a packet that has none yet or any
    /// more; a packet that was to be sent may even be dropped before it gets that.
    pub fn dropped(
        &self,
        now_ns: u64,
        iface: u32,
        direction: Direction,
        reason: &str,
        bytes: &[u8],
    ) {
        let mut shared = self.lock();
        shared.tick(now_ns);
        let time_ns = now_ns.wrapping_add(shared.unix_offset_ns);
        let comment = format!("drop: {reason}");
        let link = shared.links.get(iface as usize).copied().unwrap_or(LinkType::Raw);
        let header = missing_header(link, direction, bytes);
        let len = u32::try_from(header.len() + bytes.len()).unwrap_or(u32::MAX);
        shared.write(|writer, _| {
            writer.packet(iface, time_ns, direction, Some(&comment), &[&header, bytes], len)
        });
    }

    /// Writes out what is still in memory, and tells the first error of the whole capture.
    pub fn finish(&self) -> io::Result<()> {
        let mut shared = self.lock();
        shared.flush();
        shared.error.take().map_or(Ok(()), Err)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Shared is whole between any two calls of the writer.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn packet(&mut self, iface: u32, time_ns: u64, direction: Direction, packet: &Packet) {
        let time_ns = time_ns.wrapping_add(self.unix_offset_ns);
        self.write(|writer, tail| {
            tail.resize(packet.tail.len() as usize, 0);
            packet.tail.copy_to(0, tail);
            let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
            writer.packet(iface, time_ns, direction, None, &[packet.linear(), tail], len)
        });
    }

    fn write<F>(&mut self, f: F)
    where
        F: FnOnce(&mut Writer<Box<dyn Write + Send>>, &mut Vec<u8>) -> io::Result<()>,
    {
        if let Some(writer) = &mut self.writer {
            let result = f(writer, &mut self.tail);
            self.dirty = true;
            self.check(result);
        }
    }

    /// Once a second: flushes, and follows a clock that was set.
    fn tick(&mut self, now_ns: u64) {
        if self.last_flush_ns.is_some_and(|last| now_ns.saturating_sub(last) < FLUSH_INTERVAL_NS) {
            return;
        }
        self.last_flush_ns = Some(now_ns);
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.unix_offset_ns = (unix.as_nanos() as u64).wrapping_sub(now_ns);
        self.flush();
    }

    fn flush(&mut self) {
        if std::mem::take(&mut self.dirty) {
            let result = self.writer.as_mut().map_or(Ok(()), Writer::flush);
            self.check(result);
        }
    }

    fn check(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.writer = None;
            self.error.get_or_insert(error);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The Ethernet header, of no stations, that a reader needs in front of a packet without one.
fn missing_header(link: LinkType, direction: Direction, bytes: &[u8]) -> Vec<u8> {
    let ethertype: u16 = match (link, ip_version(bytes), direction) {
        (LinkType::Raw, ..) => return Vec::new(),
        (_, Some(4), _) => 0x0800,
        (_, Some(_), _) => 0x86dd,
        // It came with its own.
        (_, None, Direction::Inbound) => return Vec::new(),
        // Local experimental (IEEE 802): readers show bytes.
        (_, None, Direction::Outbound) => 0x88b5,
    };
    [&[0; 12], &ethertype.to_be_bytes()[..]].concat()
}

/// Whether these bytes are a whole IP packet: a link header in this place would have to state their
/// length.
fn ip_version(bytes: &[u8]) -> Option<u8> {
    let stated =
        |at: usize| Some(usize::from(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])));
    match bytes.first()? >> 4 {
        4 => (stated(2)? == bytes.len()).then_some(4),
        6 => (stated(4)? + 40 == bytes.len()).then_some(6),
        _ => None,
    }
}

/// A port whose packets are recorded in both directions; otherwise it is the port inside.
///
/// Packets are recorded as they pass: merged ones whole, and with the checksum that a device is
/// still to complete.
#[derive(Debug)]
pub struct Capture<P> {
    file: CaptureFile,
    iface: u32,
    port: P,
    /// Packets at the front of the outbound batch that were recorded before the device refused them.
    before: usize,
}

impl<P: Port> Port for Capture<P> {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let present = out.len();
        let received = self.port.poll(now_ns, pool, out, max);
        let mut shared = self.file.lock();
        shared.tick(now_ns);
        for packet in out.iter().skip(present) {
            let arrival_ns =
                if packet.meta.arrival_ns == 0 { now_ns } else { packet.meta.arrival_ns };
            shared.packet(self.iface, arrival_ns, Direction::Inbound, packet);
        }
        received
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        // The port gives the buffers back, so record first; what it refuses comes again.
        let mut shared = self.file.lock();
        shared.tick(now_ns);
        for packet in batch.iter().skip(self.before) {
            shared.packet(self.iface, now_ns, Direction::Outbound, packet);
        }
        drop(shared);
        let taken = self.port.submit(now_ns, pool, batch);
        self.before = batch.len();
        taken
    }

    fn offloads(&self) -> Offloads {
        self.port.offloads()
    }

    fn link_type(&self) -> towpath_pool::LinkType {
        self.port.link_type()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.wake_fd()
    }

    fn blocked(&self) -> bool {
        self.port.blocked()
    }

    fn is_gone(&self) -> bool {
        self.port.is_gone()
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        let shared = self.file.lock();
        let flush = if shared.dirty {
            shared.last_flush_ns.map(|last| last + FLUSH_INTERVAL_NS)
        } else {
            None
        };
        [flush, self.port.next_timeout_ns()].into_iter().flatten().min()
    }

    fn undelivered(&self) -> u64 {
        self.port.undelivered()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_pool::LinkType as PortLink;
    use towpath_shm::{Fragments, Mapping, Stretch};

    /// A link that returns what is sent, and takes `room` packets a call.
    struct Echo {
        queue: Batch,
        room: usize,
    }

    impl Port for Echo {
        fn poll(&mut self, _: u64, _: &mut Pool, out: &mut Batch, max: usize) -> usize {
            let n = max.min(self.queue.len());
            out.extend(self.queue.drain(..n));
            n
        }
        fn submit(&mut self, _: u64, _: &mut Pool, batch: &mut Batch) -> usize {
            let n = self.room.min(batch.len());
            self.queue.extend(batch.drain(..n));
            n
        }
        fn offloads(&self) -> Offloads {
            Offloads::default()
        }
        fn link_type(&self) -> PortLink {
            PortLink::Ip
        }
        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    /// A file in memory; fails once it is longer than `limit`.
    #[derive(Clone)]
    struct Disk {
        bytes: Arc<Mutex<Vec<u8>>>,
        limit: usize,
    }

    impl Disk {
        fn new(limit: usize) -> Self {
            Self { bytes: Arc::default(), limit }
        }
        fn bytes(&self) -> Vec<u8> {
            self.bytes.lock().unwrap().clone()
        }
    }

    impl Write for Disk {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            let mut bytes = self.bytes.lock().unwrap();
            if bytes.len() + data.len() > self.limit {
                return Err(io::ErrorKind::StorageFull.into());
            }
            bytes.extend_from_slice(data);
            Ok(data.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The enhanced packet blocks of a file: interface, time in ns, data, and the options behind.
    fn packets(file: &[u8]) -> Vec<(u32, u64, Vec<u8>, Vec<u8>)> {
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let (mut at, mut out) = (0, Vec::new());
        while at < file.len() {
            let len = word(at + 4) as usize;
            if word(at) == 6 {
                let time = u64::from(word(at + 12)) << 32 | u64::from(word(at + 16));
                let captured = word(at + 20) as usize;
                let data = file[at + 28..at + 28 + captured].to_vec();
                let options = file[at + 28 + captured.next_multiple_of(4)..at + len - 4].to_vec();
                out.push((word(at + 8), time, data, options));
            }
            at += len;
        }
        out
    }

    fn packet(pool: &mut Pool, bytes: &[u8]) -> Packet {
        let mut packet = pool.take(bytes.len());
        packet.push_back(bytes.len()).unwrap().copy_from_slice(bytes);
        packet
    }

    #[test]
    fn both_directions_with_tails_and_each_packet_once() {
        let disk = Disk::new(usize::MAX);
        let file = CaptureFile::new(Box::new(disk.clone()), 1 << 16).unwrap();
        let mut port = file.capture("up", Echo { queue: Batch::new(), room: 1 }).unwrap();
        let mut pool = Pool::default();
        let memory = Arc::new(Mapping::private(4096).unwrap());
        memory.write(0, b"tail");
        let mut first = packet(&mut pool, b"head ");
        first.tail = Fragments::new(Stretch::new(&memory, 0, 4), None);
        let mut batch = Batch::from([first, packet(&mut pool, b"second")]);
        // The second is refused once, and recorded once.
        assert_eq!(port.submit(10, &mut pool, &mut batch), 1);
        assert_eq!(port.submit(20, &mut pool, &mut batch), 1);
        let mut out = Batch::new();
        assert_eq!(port.poll(30, &mut pool, &mut out, 1), 1);
        file.dropped(40, 1, Direction::Inbound, "bad checksum", b"lost");
        file.finish().unwrap();

        let seen = packets(&disk.bytes());
        let data: Vec<_> = seen.iter().map(|p| (p.0, &p.2[..])).collect();
        assert_eq!(data, [(1, &b"head tail"[..]), (1, b"second"), (1, b"head tail"), (1, b"lost")]);
        assert!(seen[3].3.windows(18).any(|w| w == b"drop: bad checksum"));
        assert_eq!(seen[3].1 - seen[0].1, 30, "the engine's clock, as Unix time");
        assert!(seen[0].1 > 1_700_000_000_000_000_000);
    }

    #[test]
    fn dropped_packets_get_the_header_that_they_miss() {
        let v4 = [&[0x45, 0, 0, 20][..], &[1; 16]].concat();
        let v6 = [&[0x60, 0, 0, 0, 0, 1][..], &[1; 35]].concat();
        let frame = [&[0x45; 12][..], &[8, 0], &v4].concat();
        let (inbound, outbound) = (Direction::Inbound, Direction::Outbound);
        let ether = LinkType::Ethernet;
        assert_eq!(missing_header(ether, outbound, &v4)[12..], [8, 0]);
        assert_eq!(missing_header(ether, inbound, &v6)[12..], [0x86, 0xdd]);
        assert_eq!(missing_header(ether, outbound, &v4[1..])[12..], [0x88, 0xb5]);
        assert!(missing_header(ether, inbound, &frame).is_empty());
        assert!(missing_header(ether, inbound, &[]).is_empty());
        assert!(missing_header(LinkType::Raw, outbound, &v4).is_empty());
    }

    #[test]
    fn flushes_within_a_second_and_when_dropped() {
        let disk = Disk::new(usize::MAX);
        let file = CaptureFile::new(Box::new(disk.clone()), 1 << 16).unwrap();
        let mut port = file.capture("up", Echo { queue: Batch::new(), room: 9 }).unwrap();
        let mut pool = Pool::default();
        let mut batch = Batch::from([packet(&mut pool, b"one"), packet(&mut pool, b"two")]);
        let second = batch.split_off(1);
        port.submit(5, &mut pool, &mut batch);
        assert_eq!(packets(&disk.bytes()).len(), 0);
        let due = port.next_timeout_ns().expect("something is in memory");
        assert_eq!(due, 5 + FLUSH_INTERVAL_NS);
        port.poll(due, &mut pool, &mut Batch::new(), 0);
        assert_eq!(packets(&disk.bytes()).len(), 1);
        assert_eq!(port.next_timeout_ns(), None);
        batch = second;
        port.submit(due + 1, &mut pool, &mut batch);
        drop((port, file));
        assert_eq!(packets(&disk.bytes()).len(), 2);
    }

    #[test]
    fn a_full_disk_stops_the_capture_and_not_the_traffic() {
        let disk = Disk::new(300);
        let file = CaptureFile::new(Box::new(disk), 1 << 16).unwrap();
        let mut port = file.capture("up", Echo { queue: Batch::new(), room: 9 }).unwrap();
        let mut pool = Pool::default();
        for turn in 0..4 {
            let mut batch = Batch::from([packet(&mut pool, &[7; 200])]);
            assert_eq!(port.submit(turn * FLUSH_INTERVAL_NS, &mut pool, &mut batch), 1);
        }
        assert_eq!(file.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
