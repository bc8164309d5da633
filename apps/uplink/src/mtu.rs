//! Follows the MTU and the link of the kernel's interfaces below a stack, which may change while
//! the stack runs.
//!
//! A packet socket rejects frames that exceed the interface's MTU. If the stack did not adopt a
//! lower MTU, it would retransmit such frames without end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use towpath_engine::Remote;
use towpath_interface::{Interface, LinkWatch};
use towpath_stack::net::{Change, IfaceId};

/// Range of valid MTUs in bytes: from IPv6's minimum (RFC 8200, section 5) to the longest IPv4
/// packet (RFC 791).
pub const MTUS: std::ops::RangeInclusive<u32> = 1280..=65535;

/// An interface of the kernel whose MTU and link a stack adopts when they change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed {
    /// Name of the interface.
    pub interface: String,
    /// Index of the interface.
    pub index: u32,
    /// Current MTU of the interface in bytes.
    pub mtu: u32,
    /// Maximum MTU of the stack in bytes, even if the interface's MTU is higher.
    pub most: u32,
    /// Whether the interface has a link.
    pub has_carrier: bool,
}

/// Change of a followed interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkChange {
    /// The interface has another MTU.
    Mtu,
    /// The interface has lost its link, or has it again. The value is that of the report, because
    /// the link may already have changed again.
    Carrier {
        /// Whether the interface has a link.
        has_carrier: bool,
    },
}

/// Thread that receives the kernel's reports of changes. Dropping this ends the thread.
#[derive(Debug)]
pub struct MtuFollower {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Followed {
    /// Creates the description of an interface. `most` limits the stack's MTU in bytes, if given.
    pub fn new(interface: &Interface, most: Option<u32>) -> Self {
        let Interface { name, index, mtu, .. } = interface;
        let most = most.unwrap_or(*MTUS.end());
        Self { interface: name.clone(), index: *index, mtu: *mtu, most, has_carrier: true }
    }

    /// Returns the MTU that the stack must use, in bytes.
    pub fn stack_mtu(&self) -> u32 {
        self.mtu.min(self.most).max(*MTUS.start())
    }

    /// Returns a message for the user about a change of the interface's MTU.
    pub fn sentence(&self) -> String {
        let Self { interface, mtu, .. } = self;
        let stack = self.stack_mtu();
        if *mtu < stack {
            return format!(
                "the MTU of {interface} is {mtu} now, and the stack sends packets of up to \
                 {stack} bytes: the kernel drops longer ones than {mtu}"
            );
        }
        format!(
            "the MTU of {interface} is {mtu} now: the stack sends packets of up to {stack} bytes"
        )
    }
}

impl MtuFollower {
    /// Starts the thread. After each change, the thread calls `changed` with all interfaces, and
    /// the index of the changed one.
    ///
    /// # Errors
    /// Fails if no descriptor or thread can be created.
    pub fn start(
        followed: Vec<Followed>,
        changed: impl FnMut(&[Followed], usize, LinkChange) + Send + 'static,
    ) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (watch, stop) = (LinkWatch::open()?, eventfd(0, flags)?);
        let stopped = stop.try_clone()?;
        let work = move || follow(&watch, &stopped, followed, changed);
        let thread = Builder::new().name("towpath-mtu".into()).spawn(work)?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Starts the thread for the only interface of an engine. The thread sets the engine's MTU, and
    /// calls `tell` with a message for the user. When the link is lost, the engine forgets its
    /// neighbors.
    ///
    /// # Errors
    /// Returns the errors of [`Self::start`].
    pub fn of_engine(
        followed: Followed,
        remote: Remote,
        tell: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Self> {
        Self::start(vec![followed], move |all, place, change| {
            let followed = &all[place];
            match change {
                LinkChange::Mtu => {
                    set_engine_mtu(&remote, followed.stack_mtu());
                    tell(&followed.sentence());
                }
                LinkChange::Carrier { has_carrier } => {
                    // Ignore errors: this fails only if the engine has ended.
                    let _ = remote.set_carrier(IfaceId(1), has_carrier);
                }
            }
        })
    }
}

/// Sets the MTU of the only interface of an engine.
pub fn set_engine_mtu(remote: &Remote, mtu: u32) {
    // Ignore errors: this fails only if the engine has ended, and so sends no packets.
    let _ = remote.apply(vec![Change::SetMtuMost { iface: IfaceId(1), mtu }]);
}

impl Drop for MtuFollower {
    fn drop(&mut self) {
        // Ignore errors: a single write never overflows the eventfd's counter.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // Ignore a panic of the thread, because its message was already printed.
            let _ = thread.join();
        }
    }
}

/// Handles the kernel's reports until `stop` is readable.
fn follow(
    watch: &LinkWatch,
    stop: &OwnedFd,
    mut followed: Vec<Followed>,
    mut changed: impl FnMut(&[Followed], usize, LinkChange),
) {
    // Request the current MTUs, because they may have changed since the interfaces were opened.
    request_all(watch, &followed);
    loop {
        let mut fds =
            [watch.as_fd(), stop.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let polled = poll(&mut fds, None);
        if polled.is_ok() && !fds[1].revents().is_empty() {
            return;
        }
        let mut changes = Vec::new();
        let read = watch.read(|report| {
            let place = followed.iter().position(|known| known.index == report.index);
            let Some(place) = place else { return };
            let known = &mut followed[place];
            if known.mtu != report.mtu {
                known.mtu = report.mtu;
                changes.push((place, LinkChange::Mtu));
            }
            if known.has_carrier != report.has_carrier {
                let has_carrier = report.has_carrier;
                known.has_carrier = has_carrier;
                changes.push((place, LinkChange::Carrier { has_carrier }));
            }
        });
        if read.is_err() {
            request_all(watch, &followed);
        }
        changes.into_iter().for_each(|(place, change)| changed(&followed, place, change));
    }
}

fn request_all(watch: &LinkWatch, followed: &[Followed]) {
    // Ignore errors: even if this request fails, later changes are still reported.
    followed.iter().for_each(|known| _ = watch.request(known.index));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(mtu: u32, most: u32) -> Followed {
        Followed { interface: "eth1".into(), index: 2, mtu, most, has_carrier: true }
    }

    #[test]
    fn the_stack_has_the_mtu_within_its_limits() {
        let mtu = |mtu, most| followed(mtu, most).stack_mtu();
        assert_eq!(mtu(1500, 65_535), 1500);
        assert_eq!(mtu(9000, 1400), 1400);
        assert_eq!(mtu(576, 65_535), 1280);
        assert!(followed(576, 65_535).sentence().contains("drops longer ones than 576"));
        assert!(followed(9000, 1400).sentence().ends_with("packets of up to 1400 bytes"));
    }

    #[test]
    fn the_thread_ends_and_starts_from_the_current_mtu() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let lo = Followed { interface: "lo".into(), index: 1, ..followed(1, 65_535) };
        let follower = MtuFollower::start(vec![lo], move |all, place, change| {
            if change == LinkChange::Mtu {
                // Ignore errors: the receiver outlives the thread.
                let _ = sender.send((all[place].mtu, place));
            }
        });
        let (mtu, place) = receiver.recv().expect("a report");
        assert!(mtu >= 1280 && place == 0);
        drop(follower.expect("a thread"));
        assert!(receiver.recv().is_err(), "the thread has ended");
    }
}
