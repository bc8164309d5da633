//! A connected front end: carries out its requests on the device.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use towpath_pool::{Batch, Pool};
use towpath_shm::Fd;

use crate::device::{NetDevice, QUEUES, RX, TX, VhostCounters};
use crate::features::{NetFeatures, OFFERED, PROTOCOL_OFFERED, has_reply_ack};
use crate::memory::{GuestMemory, GuestMemoryError, REGIONS_MAX, RegionSpec};
use crate::message::{FrontEndRequest, QueueFd, QueueValue};
use crate::ring::{RingError, RingSetup};
use crate::send::SendEnd;
use crate::socket::{FrontEndMessage, MessageReader, answer};
use crate::watched::{WatchList, WatchSource, WatchedFd};

/// Maximum number of requests carried out before the stack continues with its other work.
const REQUESTS_AT_ONCE: usize = 64;

/// Reason why the connection to a front end was closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrontEndError {
    /// The front end has closed the connection.
    #[error("it has disconnected")]
    Closed,
    /// A system call failed.
    #[error("a system call failed: {0}")]
    Io(#[from] io::Error),
    /// The header of a message has another version.
    #[error("version {0} of the protocol is not supported: expected 1")]
    Version(u32),
    /// A message is too long.
    #[error("a message of {0} bytes is too long")]
    TooLong(u32),
    /// The payload of a message is too short.
    #[error("message {0} is too short")]
    Malformed(u32),
    /// A message has too many descriptors, or too few.
    #[error("a message has the wrong number of descriptors")]
    Descriptors,
    /// A descriptor for notifications is another file, to which writing could block or fail.
    #[error("a descriptor for notifications is no eventfd")]
    NoEventfd,
    /// The request is unknown, or not supported.
    #[error("request {0} is not supported")]
    Unsupported(u32),
    /// The request belongs to live migration.
    #[error("live migration is not supported, because the stack does not log what it writes")]
    Migration,
    /// The front end has chosen features that were not offered.
    #[error("the features {0:#x} were not offered")]
    Features(u64),
    /// The request is about a virtqueue that does not exist.
    #[error("there is no virtqueue {0}: the device has one pair")]
    NoQueue(u32),
    /// The guest's memory cannot be used.
    #[error("the guest's memory cannot be used: {0}")]
    Memory(#[from] GuestMemoryError),
    /// A memory region to remove does not exist.
    #[error("there is no such memory region")]
    NoRegion,
    /// A virtqueue cannot start.
    #[error("a virtqueue cannot start: {0}")]
    Ring(#[from] RingError),
}

/// State of a virtqueue that the front end sets before it starts.
#[derive(Debug, Default)]
struct QueueState {
    setup: RingSetup,
    is_enabled: bool,
    /// Eventfd by which the driver notifies the device. The virtqueue runs while there is one.
    notification: Option<WatchedFd<Fd>>,
    /// Eventfd by which the device notifies the driver.
    interrupt: Option<Fd>,
    /// Eventfd by which the device reports that the virtqueue is broken.
    error: Option<Fd>,
}

/// FrontEndAnswer to a request.
enum FrontEndAnswer {
    /// An answer that every request of the kind has.
    Payload([u8; 8]),
    /// Only if the front end has asked for an acknowledgement.
    Done,
}

/// A front end, and the device that it has set up.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    socket: WatchedFd<UnixStream>,
    reader: MessageReader,
    protocol: u64,
    queues: [QueueState; QUEUES],
    device: NetDevice,
    list: WatchList,
}

impl FrontEnd {
    pub(crate) fn new(socket: UnixStream, list: &WatchList) -> io::Result<Self> {
        Ok(Self {
            socket: list.watch(socket, WatchSource::FrontEnd)?,
            reader: MessageReader::new(),
            protocol: 0,
            queues: Default::default(),
            device: NetDevice::new(0, GuestMemory::default()),
            list: list.clone(),
        })
    }

    pub(crate) fn device(&self) -> &NetDevice {
        &self.device
    }

    /// Carries out requests that have arrived, up to [`REQUESTS_AT_ONCE`]. The socket stays
    /// readable if there are more.
    ///
    /// # Errors
    /// Returns the reason why the connection must be closed.
    pub(crate) fn serve(&mut self) -> Result<(), FrontEndError> {
        for _ in 0..REQUESTS_AT_ONCE {
            let Some(mut message) = self.reader.next(&self.socket.fd)? else { break };
            let request = FrontEndRequest::parse(message.number, self.reader.payload(&message));
            let descriptors = std::mem::take(&mut message.descriptors);
            let result = request.and_then(|request| self.handle(request, descriptors));
            self.reply(&message, &result)?;
            result?;
        }
        Ok(())
    }

    fn reply(
        &self,
        message: &FrontEndMessage,
        result: &Result<FrontEndAnswer, FrontEndError>,
    ) -> Result<(), FrontEndError> {
        let payload = match result {
            Ok(FrontEndAnswer::Payload(payload)) => *payload,
            _ if !message.needs_reply || !has_reply_ack(self.protocol) => return Ok(()),
            result => u64::from(result.is_err()).to_ne_bytes(),
        };
        Ok(answer(&self.socket.fd, message.number, payload)?)
    }

    fn handle(
        &mut self,
        request: FrontEndRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Result<FrontEndAnswer, FrontEndError> {
        let number = |number: u64| Ok(FrontEndAnswer::Payload(number.to_ne_bytes()));
        match request {
            FrontEndRequest::GetFeatures => return number(OFFERED),
            FrontEndRequest::SetFeatures(features) => self.set_features(features)?,
            FrontEndRequest::SetOwner => {}
            FrontEndRequest::ResetOwner => {
                for queue in 0..QUEUES {
                    self.stop(queue);
                }
            }
            FrontEndRequest::SetMemory(regions) => self.set_memory(&regions, descriptors)?,
            FrontEndRequest::SetSize(QueueValue { queue, value }) => {
                let size = u16::try_from(value).unwrap_or(0);
                self.queue(queue)?.setup.size = size;
            }
            FrontEndRequest::SetAddresses(queue, addresses) => {
                self.queue(queue)?.setup.addresses = addresses;
            }
            FrontEndRequest::SetBase(QueueValue { queue, value }) => {
                self.queue(queue)?.setup.base = value as u16;
            }
            FrontEndRequest::GetBase(queue) => {
                let base = self.get_base(queue)?;
                return number(u64::from(queue) | u64::from(base) << 32);
            }
            FrontEndRequest::SetNotification(which) => self.start(which, descriptors)?,
            FrontEndRequest::SetInterrupt(which) => {
                let interrupt = event(which, descriptors)?;
                // A notification may have been lost before a new front end has connected.
                interrupt.iter().for_each(signal);
                self.queue(which.queue)?.interrupt = interrupt;
            }
            FrontEndRequest::SetError(which) => {
                self.queue(which.queue)?.error = event(which, descriptors)?;
            }
            FrontEndRequest::GetProtocolFeatures => return number(PROTOCOL_OFFERED),
            FrontEndRequest::SetProtocolFeatures(features) => {
                known(features, PROTOCOL_OFFERED)?;
                self.protocol = features;
            }
            FrontEndRequest::GetQueueNum => return number(1),
            FrontEndRequest::Enable(QueueValue { queue, value }) => {
                self.queue(queue)?.is_enabled = value != 0;
            }
            FrontEndRequest::GetRegionsMax => return number(REGIONS_MAX as u64),
            FrontEndRequest::AddRegion(spec) => self.set_region(spec, descriptors)?,
            FrontEndRequest::RemoveRegion(spec) => {
                let remove =
                    |memory: &mut GuestMemory| memory.remove(&spec).then_some(()).ok_or(());
                self.device.change_memory(remove).map_err(|()| FrontEndError::NoRegion)?;
            }
        }
        Ok(FrontEndAnswer::Done)
    }

    fn queue(&mut self, queue: u32) -> Result<&mut QueueState, FrontEndError> {
        self.queues.get_mut(queue as usize).ok_or(FrontEndError::NoQueue(queue))
    }

    fn set_features(&mut self, features: u64) -> Result<(), FrontEndError> {
        known(features, OFFERED)?;
        self.device.set_features(features);
        if !NetFeatures(features).has_protocol_features() {
            self.queues.iter_mut().for_each(|queue| queue.is_enabled = true);
        }
        Ok(())
    }

    fn set_memory(
        &mut self,
        regions: &[RegionSpec],
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), FrontEndError> {
        if regions.len() != descriptors.len() {
            return Err(FrontEndError::Descriptors);
        }
        self.device.change_memory(|memory| {
            *memory = GuestMemory::default();
            let mut all = regions.iter().zip(descriptors);
            all.try_for_each(|(spec, file)| memory.add(*spec, file))
        })?;
        Ok(())
    }

    fn set_region(
        &mut self,
        spec: RegionSpec,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<(), FrontEndError> {
        let (Some(file), true) = (descriptors.pop(), descriptors.is_empty()) else {
            return Err(FrontEndError::Descriptors);
        };
        Ok(self.device.change_memory(|memory| memory.add(spec, file))?)
    }

    /// Starts a virtqueue, with the eventfd by which the driver notifies the device.
    fn start(&mut self, which: QueueFd, descriptors: Vec<OwnedFd>) -> Result<(), FrontEndError> {
        let notification = event(which, descriptors)?.ok_or(FrontEndError::Descriptors)?;
        let setup = self.queue(which.queue)?.setup;
        // Remove the old eventfd first, because the front end may have sent the same one again.
        self.queue(which.queue)?.notification = None;
        let watched = self.list.watch(notification, WatchSource::Queue)?;
        self.queue(which.queue)?.notification = Some(watched);
        Ok(self.device.start(which.queue as usize, setup)?)
    }

    /// Stops a virtqueue, and returns the index of the next available entry.
    fn get_base(&mut self, queue: u32) -> Result<u16, FrontEndError> {
        let base = self.queue(queue)?.setup.base;
        let next = self.stop(queue as usize).unwrap_or(base);
        self.queue(queue)?.setup.base = next;
        Ok(next)
    }

    fn stop(&mut self, queue: usize) -> Option<u16> {
        self.queues[queue].notification = None;
        self.device.stop(queue)
    }

    /// Receives up to `max` frames of the guest. Returns their number.
    pub(crate) fn receive(
        &mut self,
        counters: &mut VhostCounters,
        pool: &mut Pool,
        out: &mut Batch,
        max: usize,
    ) -> usize {
        if !self.queues[TX].is_enabled {
            return 0;
        }
        let received = self.device.receive(counters, pool, out, max);
        self.publish(TX, counters);
        received
    }

    /// Sends frames from the front of `batch`, as [`NetDevice::send`].
    pub(crate) fn send(
        &mut self,
        counters: &mut VhostCounters,
        pool: &mut Pool,
        batch: &mut Batch,
    ) -> (usize, SendEnd) {
        let end = self.device.send(counters, pool, batch);
        self.publish(RX, counters);
        end
    }

    /// Returns whether frames can be sent to the guest, or wait for its buffers.
    pub(crate) fn is_up(&self) -> bool {
        self.queues[RX].is_enabled && self.device.is_running(RX)
    }

    /// Returns whether [`Self::receive`] should be called again at once.
    pub(crate) fn has_more(&self) -> bool {
        self.queues[TX].is_enabled && self.device.has_more()
    }

    fn publish(&mut self, queue: usize, counters: &mut VhostCounters) {
        if self.device.publish(queue)
            && let Some(interrupt) = &self.queues[queue].interrupt
        {
            counters.interrupts += 1;
            signal(interrupt);
        }
    }

    /// Returns an error that has stopped a virtqueue, and reports it to the front end.
    pub(crate) fn take_fault(&mut self) -> Option<RingError> {
        (0..QUEUES).find_map(|queue| {
            let fault = self.device.take_fault(queue)?;
            self.queues[queue].error.iter().for_each(signal);
            Some(fault)
        })
    }
}

/// Returns an error if features were chosen that were not offered.
fn known(features: u64, offered: u64) -> Result<(), FrontEndError> {
    match features & !offered {
        0 => Ok(()),
        unknown => Err(FrontEndError::Features(unknown)),
    }
}

/// Returns the eventfd of a message, if the message has one.
///
/// O_NONBLOCK is set, so that a full counter does not block the stack. The flag belongs to the open
/// file that the front end shares, so a hostile front end could clear it again.
fn event(which: QueueFd, mut descriptors: Vec<OwnedFd>) -> Result<Option<Fd>, FrontEndError> {
    let fd = descriptors.pop();
    if fd.is_some() != which.has_descriptor || !descriptors.is_empty() {
        return Err(FrontEndError::Descriptors);
    }
    let Some(fd) = fd else { return Ok(None) };
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    // Without /proc, the type is unknown.
    if link.is_ok_and(|link| link.as_os_str() != "anon_inode:[eventfd]") {
        return Err(FrontEndError::NoEventfd);
    }
    let flags = fcntl_getfl(&fd).map_err(io::Error::from)?;
    if !flags.contains(OFlags::NONBLOCK) {
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
    }
    Ok(Some(fd.into()))
}

/// Signals an eventfd.
fn signal(event: &Fd) {
    // Ignore errors: if the counter is at its maximum, the peer is already notified.
    let _ = rustix::io::write(event.as_fd(), &1u64.to_ne_bytes());
}
