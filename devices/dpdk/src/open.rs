//! Opens a DPDK port.

use std::cell::Cell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use towpath_pool::{Batch, LinkType, Offloads, Owner, Pool, Port, PortCounters};

use crate::eal;
use crate::error::{OpenError, advice, no_port, tail};
use crate::pace::PollPace;
use crate::sys::{self, PortStart, QueueSender, RawInfo, Receiver, RunningPort};

/// Options for opening a DPDK port.
#[derive(Debug, Clone)]
pub struct Options {
    /// Arguments for DPDK's environment abstraction layer (EAL), split into words like a shell
    /// command.
    pub eal: String,
    /// Number of queues, one per shard (thread of the stack).
    pub queues: usize,
    /// MTU in bytes; `None` keeps the MTU of the port.
    pub mtu: Option<u32>,
}

/// A DPDK port that was started, with its queues.
#[derive(Debug)]
pub struct Opened {
    /// Queues of the port, in the order of their numbers.
    pub queues: Vec<Queue>,
    /// Properties of the port.
    pub info: PortInfo,
}

/// Properties of a DPDK port as reported by its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortInfo {
    /// Name of the port, such as `net_tap0` or `0000:01:00.0`.
    pub name: String,
    /// Name of the DPDK driver.
    pub driver: String,
    /// Kernel interface that receives the same frames as the port; `None` if there is none.
    pub interface: Option<String>,
    /// For a `net_tap` port, the kernel interface at the other end of the link.
    pub tap: Option<String>,
    /// Ethernet address that the stack can use. `None` if the kernel uses the address of the port,
    /// because then the stack needs a different address.
    pub mac: Option<[u8; 6]>,
    /// MTU of the port in bytes.
    pub mtu: u32,
}

towpath_pool::counters! {
    /// Frame counters of a queue of a DPDK port.
    pub struct Counters {
        /// Frames received from the driver.
        rx_frames,
        /// Total length of received frames in bytes.
        rx_bytes,
        /// Received frames copied because their mbuf could not be used as a packet.
        rx_copied,
        /// Received frames dropped because they exceed the maximum length.
        rx_too_long,
        /// Frames passed to the driver. A frame that is to be segmented counts as one.
        tx_frames,
        /// Total length of the frames passed to the driver, in bytes.
        tx_bytes,
        /// Frames sent from the mbuf in which they were received, without a copy.
        tx_in_place,
        /// Number of times that a packet had to wait because no mbuf was free.
        tx_no_mbuf,
        /// Number of times that the driver's transmit queue was full.
        tx_blocked,
        /// Packets dropped because of invalid offload metadata.
        tx_malformed,
        /// Packets dropped because the interface was removed.
        tx_refused,
    }
}

/// The device of a DPDK port, shared by the port's queues.
#[derive(Debug)]
struct Device {
    running: RunningPort,
    offloads: Offloads,
    interface: Option<String>,
    /// Descriptor of a socket. The interface is in promiscuous mode as long as it is open.
    _promiscuous: Option<OwnedFd>,
}

/// Queue of a DPDK port, used by one shard (thread of the stack).
pub struct Queue {
    pub(crate) receiver: Receiver,
    pub(crate) sender: QueueSender,
    pub(crate) pace: PollPace,
    pub(crate) counters: Counters,
    pub(crate) blocked: bool,
    pub(crate) gone: bool,
    /// Index of the queue within the port.
    number: u16,
    owner: Option<Owner>,
    /// Time in nanoseconds of the next check whether the kernel interface still exists.
    look_ns: u64,
    on_gone: Option<Box<dyn FnOnce() + Send>>,
    wake_fd: Option<BorrowedFd<'static>>,
    /// Must be the last field: fields are dropped in order, and the queue must be dropped before
    /// the device.
    device: Arc<Device>,
}

/// Drivers whose ports use a kernel interface. The kernel uses the same interface and Ethernet
/// address.
const BESIDE_KERNEL: [&str; 3] = ["net_af_packet", "net_af_xdp", "net_pcap"];
/// DPDK driver whose ports are connected to a kernel interface (TAP device).
const TAP: &str = "net_tap";
/// DPDK driver that distributes frames among all of its queues, even those that no thread polls.
const AF_PACKET: &str = "net_af_packet";
/// Length of an Ethernet header in bytes.
const ETHERNET_LEN: u32 = 14;
/// Interval in nanoseconds between checks whether the kernel interface still exists.
const LOOK_EVERY_NS: u64 = 1_000_000_000;
/// Time in nanoseconds after which sending to a full transmit queue is tried again.
const BLOCKED_NS: u64 = 20_000;

/// Initializes DPDK and starts its only port.
///
/// # Errors
/// See [`OpenError`].
pub fn open(options: &Options) -> Result<Opened, OpenError> {
    static STARTED: AtomicBool = AtomicBool::new(false);
    let arguments = eal::arguments(&options.eal, &processors())?;
    if STARTED.swap(true, Ordering::Relaxed) {
        return Err(OpenError::Twice);
    }
    sys::init(&arguments.words, arguments.logs, arguments.keeps_files).map_err(|source| {
        let log = sys::log();
        OpenError::Eal { advice: advice(&log, &source), log: tail(&log), source }
    })?;
    let port = match sys::ports() {
        (Some(port), 1) => port,
        (None, _) => return Err(no_port(&sys::log())),
        (_, count) => return Err(OpenError::SeveralPorts { count }),
    };
    start(port, options)
}

fn start(port: u16, options: &Options) -> Result<Opened, OpenError> {
    let raw = RawInfo::of(port).map_err(|source| step("?", "ask about the port".into(), source))?;
    let (name, driver, interface) = (raw.name(), raw.driver(), raw.interface());
    let (is_shared, is_tap) = (BESIDE_KERNEL.contains(&&*driver), driver == TAP);
    check_queues(&name, &driver, raw.queues_max.into(), options.queues)?;
    let own_mtu = if is_shared && raw.interface_mtu > 0 { raw.interface_mtu } else { raw.mtu };
    let mtu = options.mtu.unwrap_or(own_mtu);
    let limit = interface.clone().filter(|_| is_shared && mtu > own_mtu);
    if let Some(interface) = limit {
        return Err(OpenError::Mtu { interface, mtu, most: own_mtu });
    }
    let start = PortStart {
        queues: options.queues as u16,
        mtu,
        sets_mtu: !is_shared && !is_tap && options.mtu.is_some(),
        wants_groups: !is_shared && !is_tap,
    };
    let started = RunningPort::start(port, start);
    let (running, mbufs) = started.map_err(|(failed, source)| step(&name, failed, source))?;
    let promiscuous = match &interface {
        Some(interface) if is_shared => {
            Some(sys::hold_promiscuous(interface).map_err(|source| {
                step(&name, format!("set promiscuous mode of {interface}"), source)
            })?)
        }
        _ => None,
    };
    // The driver net_tap 22.11 counts the Ethernet header as part of its MTU, and rejects full-size
    // segments.
    let is_refused = is_tap && mtu + ETHERNET_LEN > raw.mtu;
    let segments = raw.can_segment != 0 && !is_refused;
    let offloads = Offloads {
        checksum: raw.can_checksum != 0,
        tcp_segmentation: segments,
        udp_segmentation: false,
    };
    let device =
        Device { running, offloads, interface: interface.clone(), _promiscuous: promiscuous };
    let device = Arc::new(device);
    let queues = (0..).zip(mbufs).map(|(number, mbufs)| Queue::new(&device, number, mbufs));
    let queues = queues.collect();
    // The address is unsuitable for a stack if it is a multicast address or zero.
    let is_station = raw.mac[0] & 1 == 0 && raw.mac != [0; 6];
    let mac = Some(raw.mac).filter(|_| is_station && !is_shared && !is_tap);
    sys::keep_from_programs();
    let (interface, tap) = if is_tap { (None, interface) } else { (interface, None) };
    Ok(Opened { queues, info: PortInfo { name, driver, interface, tap, mac, mtu } })
}

fn step(name: &str, step: String, source: std::io::Error) -> OpenError {
    let log = sys::log();
    let (advice, log) = (advice(&log, &source), tail(&log));
    OpenError::Step { name: name.to_owned(), step, source, advice, log }
}

fn check_queues(name: &str, driver: &str, has: usize, wanted: usize) -> Result<(), OpenError> {
    let name = name.to_owned();
    if wanted > has {
        let is_af_packet = driver == AF_PACKET;
        let advice = if is_af_packet { ": give the device qpairs=NUMBER" } else { "" };
        return Err(OpenError::Queues { name, has, wanted, advice });
    }
    if driver == AF_PACKET && has != wanted {
        return Err(OpenError::Spare { name, has, wanted });
    }
    Ok(())
}

/// Returns the CPUs on which this thread may run.
fn processors() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    let is_ours = |cpu: &usize| set.as_ref().is_ok_and(|set| set.is_set(*cpu));
    let cpus: Vec<_> = (0..rustix::thread::CpuSet::MAX_CPU).filter(is_ours).collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

impl Queue {
    fn new(device: &Arc<Device>, number: u16, mbufs: sys::Mbufs) -> Self {
        let running = &device.running;
        Self {
            receiver: Receiver::new(running, number, mbufs),
            sender: QueueSender::new(running, number, mbufs),
            pace: PollPace::default(),
            counters: Counters::default(),
            blocked: false,
            gone: false,
            number,
            owner: None,
            look_ns: 0,
            on_gone: None,
            wake_fd: running.wake_fd(number),
            device: Arc::clone(device),
        }
    }

    /// Calls `tell` once after the interface was removed, on the thread that polls the queue.
    pub fn on_gone(&mut self, tell: impl FnOnce() + Send + 'static) {
        self.on_gone = Some(Box::new(tell));
    }

    /// Returns the frame counters of this queue.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the driver's counters of the port and its queues, by name. Only the first queue
    /// returns them; otherwise a sum over all queues would count them several times.
    pub fn driver_counters(&self) -> Vec<(String, u64)> {
        if self.number > 0 { Vec::new() } else { self.device.running.counters() }
    }

    /// Returns the number that identifies this queue's buffers in the packet pool of its shard.
    pub(crate) fn owner(&mut self, pool: &mut Pool) -> Owner {
        *self.owner.get_or_insert_with(|| pool.add_owner())
    }

    fn look_whether_gone(&mut self, now_ns: u64) {
        let Some(interface) = self.device.interface.as_deref() else { return };
        if now_ns < self.look_ns || self.gone {
            return;
        }
        self.look_ns = now_ns + LOOK_EVERY_NS;
        if !sys::is_there(interface) {
            self.gone = true;
            if let Some(tell) = self.on_gone.take() {
                tell();
            }
        }
    }
}

/// Prepares the current thread for DPDK on the first call, because a queue can move to another
/// thread.
#[inline]
fn enter() {
    thread_local! {
        static HAS_ENTERED: Cell<bool> = const { Cell::new(false) };
    }
    if !HAS_ENTERED.replace(true) {
        sys::enter_thread();
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Queue");
        out.field("device", &self.device).field("number", &self.number).finish_non_exhaustive()
    }
}

impl Port for Queue {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        enter();
        self.look_whether_gone(now_ns);
        if self.gone { 0 } else { self.receive(now_ns, pool, out, max) }
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.transmit(now_ns, pool, batch)
    }

    fn offloads(&self) -> Offloads {
        self.device.offloads
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake_fd
    }

    fn blocked(&self) -> bool {
        self.blocked
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        match (self.gone, self.blocked, self.wake_fd) {
            (true, ..) => None,
            (_, true, _) => Some(self.pace.polled_ns() + BLOCKED_NS),
            (_, _, Some(_)) => self.device.interface.as_ref().map(|_| self.look_ns),
            _ => Some(self.pace.next_ns()),
        }
    }

    fn counters(&self) -> PortCounters {
        let mut all = vec![("dpdk", self.counters().iter().collect())];
        // Leak the names reported by the driver, because static strings are needed; this happens
        // once per run.
        let name = |name: String| -> &'static str { name.leak() };
        let port: Vec<_> =
            self.driver_counters().into_iter().map(|(key, value)| (name(key), value)).collect();
        if !port.is_empty() {
            all.push(("dpdk_port", port));
        }
        all
    }
}
