//! Records the packets that a [`Port`] receives and sends.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use towpath_pool::{Batch, Packet, Pool, Port};

use crate::spool::{Spool, SpoolProgress};
use crate::{CaptureLinkType, Direction, Interface, SNAPLEN_DEFAULT, Writer};

/// Maximum time in nanoseconds between recording a packet and writing it to the file, so that a
/// reader can follow the capture.
const FLUSH_INTERVAL_NS: u64 = 1_000_000_000;

/// Pcapng file in which the packets of several ports are recorded. Clones refer to the same file.
///
/// Interface 0 of the file is the stack's loopback, for which only dropped packets are recorded.
/// The ports follow in the order of [`CaptureFile::capture`], which is also the order of the
/// stack's interface numbers.
///
/// All interfaces have the type Ethernet. libpcap, which tcpdump uses, rejects files with several
/// types of interfaces, or with several interfaces of LINKTYPE_RAW. Packets without a link header
/// get an Ethernet header with zero addresses, as on Linux's loopback.
#[derive(Debug, Clone)]
pub struct CaptureFile {
    shared: Arc<Mutex<Shared>>,
    progress: SpoolProgress,
}

/// Limits of a packet capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of bytes that are recorded per packet; longer packets are truncated.
    pub snaplen: u32,
    /// Maximum length of the capture file in bytes; `None` means unlimited.
    pub size: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { snaplen: SNAPLEN_DEFAULT, size: None }
    }
}

/// Warning about a packet capture for the user. Each kind is given once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// Packets arrive faster than the file can be written, so some are not recorded.
    Slow,
    /// The file has reached its maximum length, [`Limits::size`]. Recording has ended.
    Full,
    /// Writing to the file failed with this error. Recording has ended.
    Failed(String),
}

type Teller = Arc<dyn Fn(Warning) + Send + Sync>;

struct Shared {
    /// Writer of the file. `None` after the size limit is reached, and after a write error, because
    /// readers cannot find blocks after an incomplete one.
    writer: Option<Writer<Spool>>,
    tell: Teller,
    size_max: u64,
    /// Number of packets that were not recorded because writing was too slow.
    lost: u64,
    /// Whether the packets of each interface start with a link header.
    framed: Vec<bool>,
    /// Difference in nanoseconds between Unix time and the clock of the `now_ns` arguments.
    unix_offset_ns: u64,
    last_flush_ns: Option<u64>,
    dirty: bool,
    /// Copy of the payload that is in a program's memory. The program may change its memory before
    /// the packet is written.
    tail: Vec<u8>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl CaptureFile {
    /// Starts a packet capture and its writer thread. `tell` receives warnings on the writer thread
    /// and on the threads that record packets. The function must not block.
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

    /// Returns a port that records all packets of `port`, as an interface called `name`.
    ///
    /// # Errors
    /// Returns an error if the capture has ended.
    pub fn capture<P: Port>(&self, name: &str, port: P) -> io::Result<Capture<P>> {
        let iface = self.add_interface(name, &port)?;
        Ok(Capture { file: self.clone(), iface, port, before: 0 })
    }

    /// Records the queues of one device as one interface. The queues may be used by different
    /// threads.
    ///
    /// # Errors
    /// Returns the errors of [`CaptureFile::capture`].
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

    /// Records a packet that the stack dropped on interface `iface`, with the reason as a comment.
    /// A received packet was already recorded on arrival, so it appears twice.
    ///
    /// `bytes` start with the link header, or with the IP header if there is no link header. An
    /// outgoing packet may be dropped before either header exists.
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

    /// Waits until all recorded packets are written to the file, as long as `go_on` returns true.
    ///
    /// # Errors
    /// Returns the first error of the capture, or `TimedOut` if `go_on` returned false.
    pub fn finish(&self, go_on: impl FnMut() -> bool) -> io::Result<()> {
        self.lock().flush();
        self.progress.finish(go_on)
    }

    /// Returns the number of packets that were not recorded because the file was written too
    /// slowly.
    pub fn lost(&self) -> u64 {
        self.lock().lost
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Ignore poisoning, because a panic cannot leave the state inconsistent.
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

    /// Records a packet of `len` bytes unless a limit is reached. `give` passes the parts of the
    /// packet.
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
            // The size limit is reached. Write the buffered bytes, which count towards the limit.
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

    /// Once a second, flushes the capture file, and reads the system clock again for the Unix times
    /// of later packets.
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

    /// Ends the capture if writing failed. The writer thread has already reported the error.
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

/// Returns an Ethernet header with zero addresses, for a packet without a link header.
fn frame(bytes: &[u8]) -> [u8; 14] {
    header(match bytes.first().map(|byte| byte >> 4) {
        Some(4) => ETHERTYPE_IPV4,
        Some(6) => ETHERTYPE_IPV6,
        _ => ETHERTYPE_LOCAL,
    })
}

/// Returns an Ethernet header for the record of a packet that was dropped before it got its own;
/// otherwise `None`.
fn missing_header(direction: Direction, bytes: &[u8]) -> Option<[u8; 14]> {
    match (ip_version(bytes), direction) {
        (Some(4), _) => Some(header(ETHERTYPE_IPV4)),
        (Some(_), _) => Some(header(ETHERTYPE_IPV6)),
        // A received packet already has an Ethernet header.
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
/// Local experimental EtherType (IEEE 802). Packet analyzers show the payload as plain bytes.
const ETHERTYPE_LOCAL: u16 = 0x88b5;

/// Returns the IP version if `bytes` are a complete IP packet, whose length field matches. A link
/// header is very unlikely to contain the right length at the same offset.
fn ip_version(bytes: &[u8]) -> Option<u8> {
    let stated =
        |at: usize| Some(usize::from(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])));
    match bytes.first()? >> 4 {
        4 => (stated(2)? == bytes.len()).then_some(4),
        6 => (stated(4)? + 40 == bytes.len()).then_some(6),
        _ => None,
    }
}

/// Port that records the packets of another port in both directions.
///
/// Packets are recorded as the stack sees them: coalesced segments are one packet, and checksums
/// that the device will compute are incomplete.
#[derive(Debug)]
pub struct Capture<P> {
    file: CaptureFile,
    iface: u32,
    port: P,
    /// Number of packets at the front of the outgoing batch that are already recorded in the
    /// capture file. The device did not accept them in an earlier call.
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
        // Record packets before submitting them, because the port frees their buffers. Skip packets
        // that were recorded in an earlier call, when the port did not accept them.
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

    /// Test port that receives the packets sent to it. The port accepts `room` packets per call.
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

    /// In-memory file for tests, which fails after `limit` bytes.
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

    /// Returns the packets (enhanced packet blocks) of a pcapng file: interface, time in
    /// nanoseconds, data, and options.
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

    /// Waits until the condition holds, which depends on the writer thread.
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
        // The second packet is not accepted at first. The packet must be recorded only once.
        assert_eq!(port.submit(10, &mut pool, &mut batch), 1);
        assert_eq!(port.submit(20, &mut pool, &mut batch), 1);
        let mut out = Batch::new();
        assert_eq!(port.poll(30, &mut pool, &mut out, 1), 1);
        file.dropped(40, 1, Direction::Inbound, "bad checksum", b"lost");
        file.finish(|| true).unwrap();

        let seen = packets(&disk.bytes());
        // Compare the bytes that follow the added link header.
        assert!(seen.iter().all(|p| p.2[..12] == [0; 12]));
        let data: Vec<_> = seen.iter().map(|p| (p.0, &p.2[14..])).collect();
        assert_eq!(data, [(1, &b"head tail"[..]), (1, b"second"), (1, b"head tail"), (1, b"lost")]);
        assert!(seen[3].3.windows(18).any(|w| w == b"drop: bad checksum"));
        assert_eq!(seen[3].1 - seen[0].1, 30, "the engine's clock, as Unix time");
        assert!(seen[0].1 > 1_700_000_000_000_000_000);
    }

    /// Each queue is used by a different thread.
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
        // The recorded Ethernet header depends on the IP version of a packet without link header.
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

    /// Test output that blocks until it is opened, like a FIFO without a reader.
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
        // The next recorded packet contains the number of packets lost before it (epb_dropcount).
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
