//! Port on which the packets of a capture file arrive.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rustix::fs::SeekFrom;
use towpath_pool::{Batch, LinkType, Offloads, Packet, Pool, Port, PortCounters};
use towpath_shm::Fd;
use towpath_wire::ethernet::{self, EtherType};

use crate::records::{Link, Record, Records, ReplayError, Step};

towpath_pool::counters! {
    /// Packet counters of a replayed capture.
    #[non_exhaustive]
    pub struct Counters {
        /// Packets received by the stack.
        rx_packets,
        /// Bytes received by the stack.
        rx_bytes,
        /// Records skipped because the packet is not an IP packet, or has an unsupported link type.
        rx_not_ip,
        /// Records skipped because the packet was truncated when it was captured (`tcpdump -s`).
        rx_truncated,
        /// Records skipped because they repeat a packet that was dropped. The option `--pcap`
        /// writes such records.
        rx_drop_records,
        /// 1 if the rest of the file could not be read, otherwise 0.
        rx_malformed,
        /// Packets sent by the stack, which are dropped.
        tx_dropped,
    }
}

/// Handle to the counters of a replayed capture, for other threads.
#[derive(Debug, Clone, Default)]
pub struct ReplayStats(Arc<Cells>);

#[derive(Debug, Default)]
struct Cells {
    rx_packets: AtomicU64,
    rx_bytes: AtomicU64,
    rx_not_ip: AtomicU64,
    rx_truncated: AtomicU64,
    rx_drop_records: AtomicU64,
    rx_malformed: AtomicU64,
    tx_dropped: AtomicU64,
    has_ended: AtomicBool,
}

impl ReplayStats {
    /// Returns the counters since the replay was opened.
    pub fn counters(&self) -> Counters {
        let cells = &self.0;
        Counters {
            rx_packets: cells.rx_packets.load(Relaxed),
            rx_bytes: cells.rx_bytes.load(Relaxed),
            rx_not_ip: cells.rx_not_ip.load(Relaxed),
            rx_truncated: cells.rx_truncated.load(Relaxed),
            rx_drop_records: cells.rx_drop_records.load(Relaxed),
            rx_malformed: cells.rx_malformed.load(Relaxed),
            tx_dropped: cells.tx_dropped.load(Relaxed),
        }
    }

    /// Returns whether all packets of the capture file were read.
    pub fn has_ended(&self) -> bool {
        self.0.has_ended.load(Relaxed)
    }
}

/// Increases a counter that only the current thread writes.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed) + n, Relaxed);
}

/// Capture file that is read without libc, because a program that embeds this stack may replace
/// libc's functions by the stack's.
struct Source(Fd);

impl Read for Source {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, to)?)
    }
}

/// Maximum number of records skipped per poll, so that a poll returns quickly.
const RECORDS_A_LOOK: usize = 256;

/// Port on which the packets of a capture arrive.
pub struct Replay {
    records: Records,
    stats: ReplayStats,
    /// Next packet, and its time in nanoseconds in the clock of the capture.
    ahead: Option<(i128, Packet)>,
    /// Offset in nanoseconds from the clock of the capture to that of the port; `None` before the
    /// first packet.
    ahead_ns: Option<i128>,
    /// Time of the last record in nanoseconds. A record without a time, or with an earlier one,
    /// follows immediately.
    last_ns: i128,
    start: Start,
    on_end: Option<Box<dyn FnOnce() + Send>>,
}

/// Handle with which another thread starts a waiting replay.
#[derive(Debug, Clone, Default)]
pub struct Start(Arc<AtomicBool>);

impl Start {
    /// Starts the replay. Its first packet arrives when the port is polled next.
    pub fn start(&self) {
        self.0.store(true, Relaxed);
    }

    fn has_started(&self) -> bool {
        self.0.load(Relaxed)
    }
}

impl Replay {
    /// Opens a capture file. Rejects pipes, because reading one could block the port.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened, or has an unknown format or an unsupported
    /// link type.
    pub fn open(path: &Path) -> Result<Self, ReplayError> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file").into());
        }
        Self::from_fd(OwnedFd::from(file).into())
    }

    /// Replays an open capture file from its start.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open`].
    pub fn from_fd(file: Fd) -> Result<Self, ReplayError> {
        rustix::fs::seek(&file, SeekFrom::Start(0)).map_err(io::Error::from)?;
        Self::new(Source(file))
    }

    /// Replays a capture from a reader that must not block.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open`].
    pub fn new(file: impl Read + Send + 'static) -> Result<Self, ReplayError> {
        let records = Records::new(file)?;
        let stats = ReplayStats::default();
        let start = Start::default();
        start.start();
        let (ahead, ahead_ns, on_end) = (None, None, None);
        Ok(Self { records, stats, ahead, ahead_ns, last_ns: 0, start, on_end })
    }

    /// Makes the replay wait until it is started through the returned handle. Start it on the
    /// stack's thread, or wake the stack afterwards.
    pub fn wait_for_start(&mut self) -> Start {
        self.start = Start::default();
        self.start.clone()
    }

    /// Calls `listener` after the last packet of the capture was received.
    pub fn on_end(&mut self, listener: impl FnOnce() + Send + 'static) {
        self.on_end = Some(Box::new(listener));
    }

    /// Returns a handle to the counters of the replay.
    pub fn stats(&self) -> ReplayStats {
        self.stats.clone()
    }

    /// Reads records up to the next packet to replay.
    fn read_ahead(&mut self, pool: &mut Pool) {
        let (cells, first) = (&self.stats.0, self.ahead_ns.is_none());
        for _ in 0..RECORDS_A_LOOK {
            if self.ahead.is_some() || cells.has_ended.load(Relaxed) {
                return;
            }
            let (ahead, last_ns) = (&mut self.ahead, &mut self.last_ns);
            let step = self.records.next(|record| {
                if record.is_drop {
                    return add(&cells.rx_drop_records, 1);
                }
                let at_ns = record.at_ns.unwrap_or(*last_ns);
                *last_ns = if first { at_ns } else { at_ns.max(*last_ns) };
                if record.bytes.len() < record.len {
                    return add(&cells.rx_truncated, 1);
                }
                let Some(bytes) = ip_of(&record) else { return add(&cells.rx_not_ip, 1) };
                let mut packet = pool.take(bytes.len());
                packet.push_back(bytes.len()).expect("taken with room").copy_from_slice(bytes);
                *ahead = Some((*last_ns, packet));
            });
            match step {
                Step::Record => continue,
                Step::End => {}
                Step::Malformed => cells.rx_malformed.store(1, Relaxed),
            }
            cells.has_ended.store(true, Relaxed);
        }
    }

    /// Returns the time in nanoseconds at which the next packet arrives, in the clock of the port.
    fn due_ns(&self) -> Option<u64> {
        let ((at_ns, _), ahead_ns) = (self.ahead.as_ref()?, self.ahead_ns?);
        Some(u64::try_from(at_ns + ahead_ns).unwrap_or(u64::MAX))
    }
}

/// Returns the IP packet in a record; `None` for other protocols and for frames with a VLAN tag.
fn ip_of<'a>(record: &Record<'a>) -> Option<&'a [u8]> {
    let bytes = match record.link {
        Link::Ip => record.bytes,
        Link::Ethernet => {
            let (header, len) = ethernet::Header::parse(record.bytes).ok()?;
            let is_ip = matches!(header.ethertype, EtherType::IPV4 | EtherType::IPV6);
            &record.bytes[is_ip.then_some(len)?..]
        }
        Link::Other => return None,
    };
    (!bytes.is_empty()).then_some(bytes)
}

impl Port for Replay {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let mut count = 0;
        while count < max && self.start.has_started() {
            self.read_ahead(pool);
            if let (None, Some((at_ns, _))) = (self.ahead_ns, &self.ahead) {
                self.ahead_ns = Some(i128::from(now_ns) - at_ns);
            }
            if self.due_ns().is_none_or(|due_ns| due_ns > now_ns) {
                break;
            }
            let Some((_, mut packet)) = self.ahead.take() else { break };
            add(&self.stats.0.rx_packets, 1);
            add(&self.stats.0.rx_bytes, packet.len() as u64);
            packet.meta.arrival_ns = now_ns;
            out.push_back(packet);
            count += 1;
        }
        if self.stats.has_ended()
            && self.ahead.is_none()
            && let Some(listener) = self.on_end.take()
        {
            listener();
        }
        count
    }

    fn submit(&mut self, _now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let count = batch.len();
        batch.drain(..).for_each(|packet| pool.give(packet));
        add(&self.stats.0.tx_dropped, count as u64);
        count
    }

    /// Returns that all offloads are supported, because sent packets are dropped.
    fn offloads(&self) -> Offloads {
        Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true }
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ip
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        let is_over = self.stats.has_ended() && self.ahead.is_none();
        match is_over || !self.start.has_started() {
            true => None,
            false => Some(self.due_ns().unwrap_or(0)),
        }
    }

    fn counters(&self) -> PortCounters {
        vec![("replay", self.stats().counters().iter().collect())]
    }
}
