//! The device of a new namespace on its way from the guardian, which made it there, to towpath.
//!
//! The packet has the descriptor and a JSON object, or the sentence why there is no device.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use towpath_tap::Parts;

/// A device, and remarks about its namespace.
#[derive(Debug)]
pub struct Device {
    /// Parts of the TAP device.
    pub parts: Parts,
    /// Sentences for the user.
    pub remarks: Vec<String>,
}

/// [`Device`] without its descriptor, or an error.
#[derive(Debug, Serialize, Deserialize)]
enum Words {
    Made { name: String, udp_segmentation: bool, remarks: Vec<String> },
    Failed(String),
}

/// Most bytes of the words. Longer ones do not arrive whole and are refused.
const WORDS_MAX: usize = 16 << 10;

/// Sends the device, or why there is none.
pub fn send(owner: BorrowedFd<'_>, device: Result<&Device, &anyhow::Error>) -> Result<()> {
    let words = match device {
        Ok(Device { parts, remarks }) => Words::Made {
            name: parts.name.clone(),
            udp_segmentation: parts.udp_segmentation,
            remarks: remarks.clone(),
        },
        Err(error) => Words::Failed(format!("{error:#}")),
    };
    let words = serde_json::to_vec(&words)?;
    let fds: Vec<_> = device.iter().map(|device| device.parts.fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    }
    sendmsg(owner, &[IoSlice::new(&words)], &mut ancillary, SendFlags::NOSIGNAL)
        .context("sendmsg")?;
    Ok(())
}

/// Waits for the device. None: the guardian has ended.
///
/// # Errors
/// The guardian's sentence why there is none.
pub fn receive(guardian: BorrowedFd<'_>) -> Result<Option<Device>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut words = vec![0; WORDS_MAX];
    let received = loop {
        let parts = &mut [IoSliceMut::new(&mut words)];
        match recvmsg(guardian, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other.context("the socket to the guardian")?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let fd: Option<OwnedFd> = ancillary.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    match serde_json::from_slice(&words[..received.bytes])? {
        Words::Failed(why) => bail!(why),
        Words::Made { name, udp_segmentation, remarks } => {
            let fd = fd.context("the descriptor of the device is missing")?.into();
            Ok(Some(Device { parts: Parts { fd, name, udp_segmentation }, remarks }))
        }
    }
}
