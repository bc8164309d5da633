//! Recording what passes through a [`Port`].

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use towpath_pool::{Batch, Packet, Pool, Port};

use crate::spool::{Spool, SpoolProgress};
use crate::{CaptureLinkType, Direction, Interface, SNAPLEN_DEFAULT, Writer};

/// Longest time that a recorded packet waits in memory, so that a reader can follow a running
/// capture.
const FLUSH_INTERVAL_NS: u64 = 1_000_000_000;

/// A pcapng file that several ports are recorded into; clones are the same file.
///
/// Interface 0 is the stack's own loopback, of which only dropped packets are recorded. The ports
/// follow in the order of [`CaptureFile::capture`], as the stack numbers its interfaces.
///
/// All interfaces are Ethernet: libpcap, which tcpdump reads with, takes no file whose interfaces
/// differ in type, and no second one of LINKTYPE_RAW. A packet without a link header gets an
/// Ethernet header with all-zero addresses, as on Linux's own loopback.
#[derive(Debug, Clone)]
pub struct CaptureFile {
    shared: Arc<Mutex<Shared>>,
    progress: SpoolProgress,
}

/// How much is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a packet.
    pub snaplen: u32,
    /// Most bytes of the file; None: as many as there are.
    pub size: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { snaplen: SNAPLEN_DEFAULT, size: None }
    }
}

/// Warnings that a user of a capture should hear at once. Each is told once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The file is not written as fast as packets come: some are not recorded.
    Slow,
    /// [`Limits::size`] is reached: nothing more is recorded.
    Full,
    /// Nothing more can be written.
    Failed(String),
}

type Teller = Arc<dyn Fn(Warning) + Send + Sync>;

struct Shared {
    /// None after a write error (a reader finds nothing after a torn block) and once the size limit
    /// is reached.
    writer: Option<Writer<Spool>>,
    tell: Teller,
    size_max: u64,
    /// Packets that were not recorded for want of time.
    lost: u64,
    /// Whether the packets of each port begin with a link header.
    framed: Vec<bool>,
    /// Unix time minus the engine's clock.
    unix_offset_ns: u64,
    last_flush_ns: Option<u64>,
    dirty: bool,
    /// Where the tail of a packet is copied to, because a program may change it meanwhile.
    tail: Vec<u8>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl CaptureFile {
    /// Starts a capture, and the thread that writes it. `tell` hears of troubles on that thread and
    /// on those that record, and must not wait.
    pub fn new(
        out: Box<dyn Write + Send>,
        limits: Limits,
        tell: impl Fn(Warning) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let tell: Teller = Arc::new(tell);
        let of_thread = Arc::clone(&tell);
        let failed = move |error: &io::Error| of_thread(Warning::Failed(error.to_string()));
        let spool = Spool::start(out, failed)?;
        let progress = spool.progress();
        let loopback = Interface { name: "lo", link_type: CaptureLinkType::Ethernet };
        let shared = Shared {
            writer: Some(Writer::with_snaplen(spool, &[loopback], limits.snaplen)?),
            tell,
            size_max: limits.size.unwrap_or(u64::MAX),
            lost: 0,
            framed: vec![false],
            unix_offset_ns: 0,
            last_flush_ns: None,
            dirty: true,
            tail: Vec::new(),
        };
        Ok(Self { shared: Arc::new(Mutex::new(shared)), progress })
    }

    /// Records `port` under `name` from now on.
    ///
    /// # Errors
    /// Nothing more can be written.
    pub fn capture<P: Port>(&self, name: &str, port: P) -> io::Result<Capture<P>> {
        let iface = self.add_interface(name, &port)?;
        Ok(Capture { file: self.clone(), iface, port, before: 0 })
    }

    /// Records the queues of one device, which are on threads of their own, as one interface.
    ///
    /// # Errors
    /// As for [`CaptureFile::capture`].
    pub fn capture_queues<P: Port>(
        &self,
        name: &str,
        queues: Vec<P>,
    ) -> io::Result<Vec<Capture<P>>> {
        let Some(first) = queues.first() else { return Ok(Vec::new()) };
        let iface = self.add_interface(name, first)?;
        let capture = |port| Capture { file: self.clone(), iface, port, before: 0 };
        Ok(queues.into_iter().map(capture).collect())
    }

    fn add_interface(&self, name: &str, port: &impl Port) -> io::Result<u32> {
        let framed = port.link_type() == towpath_pool::LinkType::Ethernet;
        let mut shared = self.lock();
        let writer =
            shared.writer.as_mut().ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let iface =
            writer.add_interface(&Interface { name, link_type: CaptureLinkType::Ethernet })?;
        shared.framed.push(framed);
        Ok(iface)
    }

    /// Records a packet that the stack dropped, received on or meant for interface `iface`, with
    /// the reason as its comment. A received packet has been recorded before, as it arrived.
    ///
    /// `bytes` start with the link header, or with the IP header of a packet that has none yet or
    /// any more. A packet to be sent may even be dropped before it gets an IP header.
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
        let comment = format!("drop: {reason}");
        let framed = shared.framed.get(iface as usize).copied().unwrap_or(false);
        let header = if framed { missing_header(direction, bytes) } else { Some(frame(bytes)) };
        let header = header.as_ref().map_or(&[][..], |header| &header[..]);
        let len = u32::try_from(header.len() + bytes.len()).unwrap_or(u32::MAX);
        shared.record(iface, now_ns, direction, Some(&comment), len, |_, write| {
            write(&[header, bytes])
        });
    }

    /// Waits until all that was recorded is written, as long as `go_on` says so; tells the first
    /// error of the whole capture.
    ///
    /// # Errors
    /// `TimedOut` when `go_on` ended it, otherwise what the output says.
    pub fn finish(&self, go_on: impl FnMut() -> bool) -> io::Result<()> {
        self.lock().flush();
        self.progress.finish(go_on)
    }

    /// Packets that were not recorded because the file was written too slowly.
    pub fn lost(&self) -> u64 {
        self.lock().lost
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Shared is whole between any two calls of the writer.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn packet(&mut self, iface: u32, time_ns: u64, direction: Direction, packet: &Packet) {
        let framed = self.framed.get(iface as usize).copied().unwrap_or(false);
        let header = if framed { None } else { Some(frame(packet.linear())) };
        let header = header.as_ref().map_or(&[][..], |header| &header[..]);
        let len = u32::try_from(header.len() + packet.len()).unwrap_or(u32::MAX);
        self.record(iface, time_ns, direction, None, len, |tail, write| {
            tail.resize(packet.tail.len() as usize, 0);
            packet.tail.copy_to(0, tail);
            write(&[header, packet.linear(), tail])
        });
    }

    /// Records a packet of `len` bytes, whose pieces `give` hands over, unless there is no room for
    /// it.
    fn record(
        &mut self,
        iface: u32,
        time_ns: u64,
        direction: Direction,
        comment: Option<&str>,
        len: u32,
        give: impl FnOnce(&mut Vec<u8>, &mut dyn FnMut(&[&[u8]]) -> io::Result<()>) -> io::Result<()>,
    ) {
        let Some(writer) = &mut self.writer else { return };
        let time_ns = time_ns.wrapping_add(self.unix_offset_ns);
        if writer.len() + writer.packet_len_max(len, comment) > self.size_max {
            // Bytes that are still in memory are part of the file.
            let result = writer.flush();
            (self.tell)(Warning::Full);
            self.check(result);
            self.writer = None;
            return;
        }
        if !writer.output().has_room() {
            if self.lost == 0 {
                (self.tell)(Warning::Slow);
            }
            self.lost += 1;
            let result = writer.note_lost(iface, 1);
            return self.check(result);
        }
        let result = give(&mut self.tail, &mut |pieces| {
            writer.packet(iface, time_ns, direction, comment, pieces, len)
        });
        self.dirty = true;
        self.check(result);
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

    /// The thread that writes has told the error.
    fn check(&mut self, result: io::Result<()>) {
        if result.is_err() {
            self.writer = None;
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The Ethernet header, of no stations, that a reader needs in front of a packet of a link without
/// one.
fn frame(bytes: &[u8]) -> [u8; 14] {
    header(match bytes.first().map(|byte| byte >> 4) {
        Some(4) => ETHERTYPE_IPV4,
        Some(6) => ETHERTYPE_IPV6,
        _ => ETHERTYPE_LOCAL,
    })
}

/// The same for a packet of an Ethernet, if it was dropped before it had its own.
fn missing_header(direction: Direction, bytes: &[u8]) -> Option<[u8; 14]> {
    match (ip_version(bytes), direction) {
        (Some(4), _) => Some(header(ETHERTYPE_IPV4)),
        (Some(_), _) => Some(header(ETHERTYPE_IPV6)),
        // A received packet came with its own header.
        (None, Direction::Inbound) => None,
        (None, Direction::Outbound) => Some(header(ETHERTYPE_LOCAL)),
    }
}

fn header(ethertype: u16) -> [u8; 14] {
    let mut header = [0; 14];
    header[12..].copy_from_slice(&ethertype.to_be_bytes());
    header
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Local experimental (IEEE 802): readers show bytes.
const ETHERTYPE_LOCAL: u16 = 0x88b5;

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
    /// Packets at the front of the outbound batch that were recorded before the device refused
    /// them.
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

    fn next_timeout_ns(&self) -> Option<u64> {
        let shared = self.file.lock();
        let flush = if shared.dirty {
            shared.last_flush_ns.map(|last| last + FLUSH_INTERVAL_NS)
        } else {
            None
        };
        [flush, self.port.next_timeout_ns()].into_iter().flatten().min()
    }

    towpath_pool::forward_port!(port: offloads, link_type, wake_fd, looked, blocked, is_gone);
    towpath_pool::forward_port!(port: undelivered, undelivered_of_ended);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::BorrowedFd;

    use towpath_pool::LinkType as PortLink;
    use towpath_pool::Offloads;
    use towpath_shm::{Fragments, Mapping, Stretch};

    /// A link that returns what is sent, and takes `room` packets per call.
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

    type Told = Arc<Mutex<Vec<Warning>>>;

    fn started(out: impl Write + Send + 'static, limits: Limits) -> (CaptureFile, Told) {
        let told = Told::default();
        let tell = Arc::clone(&told);
        let tell = move |trouble| tell.lock().unwrap().push(trouble);
        (CaptureFile::new(Box::new(out), limits, tell).unwrap(), told)
    }

    /// The thread that writes takes its time.
    fn eventually(condition: impl Fn() -> bool) {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(50);
        while !condition() {
            assert!(std::time::Instant::now() < until, "timed out");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn packet(pool: &mut Pool, bytes: &[u8]) -> Packet {
        let mut packet = pool.take(bytes.len());
        packet.push_back(bytes.len()).unwrap().copy_from_slice(bytes);
        packet
    }

    #[test]
    fn both_directions_with_tails_and_each_packet_once() {
        let disk = Disk::new(usize::MAX);
        let file = started(disk.clone(), Limits::default()).0;
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
        file.finish(|| true).unwrap();

        let seen = packets(&disk.bytes());
        // Behind the link header that none of them had.
        assert!(seen.iter().all(|p| p.2[..12] == [0; 12]));
        let data: Vec<_> = seen.iter().map(|p| (p.0, &p.2[14..])).collect();
        assert_eq!(data, [(1, &b"head tail"[..]), (1, b"second"), (1, b"head tail"), (1, b"lost")]);
        assert!(seen[3].3.windows(18).any(|w| w == b"drop: bad checksum"));
        assert_eq!(seen[3].1 - seen[0].1, 30, "the engine's clock, as Unix time");
        assert!(seen[0].1 > 1_700_000_000_000_000_000);
    }

    /// Each on a thread of its own, as shards turn them.
    #[test]
    fn queues_are_recorded_as_one_interface() {
        let disk = Disk::new(usize::MAX);
        let file = started(disk.clone(), Limits::default()).0;
        let echo = || Echo { queue: Batch::new(), room: 9 };
        let queues = file.capture_queues("up", vec![echo(), echo()]).unwrap();
        let mut other = file.capture("other", echo()).unwrap();
        std::thread::scope(|scope| {
            for (mut queue, bytes) in queues.into_iter().zip([b"one", b"two"]) {
                scope.spawn(move || {
                    let mut pool = Pool::default();
                    for _ in 0..100 {
                        let mut batch = Batch::from([packet(&mut pool, bytes)]);
                        assert_eq!(queue.submit(1, &mut pool, &mut batch), 1);
                        assert_eq!(queue.poll(2, &mut pool, &mut Batch::new(), 9), 1);
                    }
                });
            }
        });
        let mut pool = Pool::default();
        let mut batch = Batch::from([packet(&mut pool, b"three")]);
        other.submit(3, &mut pool, &mut batch);
        file.finish(|| true).unwrap();
        let seen = packets(&disk.bytes());
        let count = |iface, bytes: &[u8]| {
            seen.iter().filter(|p| (p.0, &p.2[14..]) == (iface, bytes)).count()
        };
        assert_eq!([count(1, b"one"), count(1, b"two"), count(2, b"three")], [200, 200, 1]);
        assert_eq!(seen.len(), 401);
    }

    #[test]
    fn dropped_packets_get_the_header_that_they_miss() {
        let v4 = [&[0x45, 0, 0, 20][..], &[1; 16]].concat();
        let v6 = [&[0x60, 0, 0, 0, 0, 1][..], &[1; 35]].concat();
        let frame_of_v4 = [&[0x45; 12][..], &[8, 0], &v4].concat();
        let (inbound, outbound) = (Direction::Inbound, Direction::Outbound);
        let ethertype = |header: [u8; 14]| [header[12], header[13]];
        let missing = |direction, bytes: &[u8]| missing_header(direction, bytes).map(ethertype);
        assert_eq!(missing(outbound, &v4), Some([8, 0]));
        assert_eq!(missing(inbound, &v6), Some([0x86, 0xdd]));
        assert_eq!(missing(outbound, &v4[1..]), Some([0x88, 0xb5]));
        assert_eq!(missing(inbound, &frame_of_v4), None);
        assert_eq!(missing(inbound, &[]), None);
        // On a link without headers there is none to miss: all get one.
        assert_eq!(
            [&v4, &v6, &vec![1]].map(|p| ethertype(frame(p))),
            [[8, 0], [0x86, 0xdd], [0x88, 0xb5]]
        );
    }

    #[test]
    fn flushes_within_a_second_and_when_dropped() {
        let disk = Disk::new(usize::MAX);
        let file = started(disk.clone(), Limits::default()).0;
        let mut port = file.capture("up", Echo { queue: Batch::new(), room: 9 }).unwrap();
        let mut pool = Pool::default();
        let mut batch = Batch::from([packet(&mut pool, b"one"), packet(&mut pool, b"two")]);
        let second = batch.split_off(1);
        port.submit(5, &mut pool, &mut batch);
        assert_eq!(packets(&disk.bytes()).len(), 0);
        let due = port.next_timeout_ns().expect("something is in memory");
        assert_eq!(due, 5 + FLUSH_INTERVAL_NS);
        port.poll(due, &mut pool, &mut Batch::new(), 0);
        eventually(|| packets(&disk.bytes()).len() == 1);
        assert_eq!(port.next_timeout_ns(), None);
        batch = second;
        port.submit(due + 1, &mut pool, &mut batch);
        drop((port, file));
        eventually(|| packets(&disk.bytes()).len() == 2);
    }

    #[test]
    fn a_full_disk_stops_the_capture_and_not_the_traffic() {
        let disk = Disk::new(300);
        let file = started(disk, Limits::default()).0;
        let mut port = file.capture("up", Echo { queue: Batch::new(), room: 9 }).unwrap();
        let mut pool = Pool::default();
        for turn in 0..4 {
            let mut batch = Batch::from([packet(&mut pool, &[7; 200])]);
            assert_eq!(port.submit(turn * FLUSH_INTERVAL_NS, &mut pool, &mut batch), 1);
        }
        assert_eq!(file.finish(|| true).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    /// A FIFO that nobody reads, until it is opened.
    #[derive(Clone, Default)]
    struct Stuck(Arc<(Mutex<bool>, std::sync::Condvar)>, Arc<Mutex<Vec<u8>>>);

    impl Write for Stuck {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            let (open, changed) = &*self.0;
            drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
            self.1.lock().unwrap().extend_from_slice(data);
            Ok(data.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_output_that_takes_nothing_stops_no_traffic_and_what_is_lost_is_told() {
        let stuck = Stuck::default();
        let (file, told) = started(stuck.clone(), Limits::default());
        let mut port = file.capture("up", Echo { queue: Batch::new(), room: 9 }).unwrap();
        let mut pool = Pool::default();
        let mut sent = 0;
        while file.lost() < 3 {
            let mut batch = Batch::from([packet(&mut pool, &[7; 60_000])]);
            assert_eq!(port.submit(sent, &mut pool, &mut batch), 1);
            port.poll(sent, &mut pool, &mut Batch::new(), 0);
            port.port.queue.drain(..).for_each(|packet| pool.give(packet));
            sent += 1;
            assert!(sent < 10_000, "memory is limited");
        }
        assert_eq!(*told.lock().unwrap(), [Warning::Slow]);
        assert_eq!(file.finish(|| false).unwrap_err().kind(), io::ErrorKind::TimedOut);
        *stuck.0.0.lock().unwrap() = true;
        stuck.0.1.notify_all();
        file.finish(|| true).unwrap();
        // The first one that is recorded again says how many are missing (epb_dropcount).
        let mut batch = Batch::from([packet(&mut pool, b"again")]);
        port.submit(sent, &mut pool, &mut batch);
        file.finish(|| true).unwrap();
        let seen = packets(&stuck.1.lock().unwrap());
        assert_eq!(seen.len() as u64, sent - 3 + 1);
        let dropcount = [&[4, 0, 8, 0][..], &3u64.to_le_bytes()].concat();
        assert!(seen.last().unwrap().3.windows(12).any(|part| part == dropcount));
    }

    #[test]
    fn a_file_does_not_grow_beyond_its_size() {
        let disk = Disk::new(usize::MAX);
        let (file, told) = started(disk.clone(), Limits { snaplen: 100, size: Some(1000) });
        let mut port = file.capture("up", Echo { queue: Batch::new(), room: 9 }).unwrap();
        let mut pool = Pool::default();
        for turn in 0..20 {
            let mut batch = Batch::from([packet(&mut pool, &[7; 500])]);
            assert_eq!(port.submit(turn, &mut pool, &mut batch), 1);
        }
        file.finish(|| true).unwrap();
        let bytes = disk.bytes();
        assert!(bytes.len() <= 1000 && bytes.len() > 800, "{}", bytes.len());
        let seen = packets(&bytes);
        assert!(seen.iter().all(|p| p.2.len() == 100), "whole packets, cut to the snap length");
        assert_eq!(*told.lock().unwrap(), [Warning::Full], "once");
    }
}
