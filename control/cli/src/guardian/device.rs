//! Transfers the TAP device that the guardian creates in a new namespace to towpath.
//!
//! The packet contains the descriptors, and either a JSON object or an error message.

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

use super::sock_diag::{Facts, SockDiag};

/// TAP device of a network namespace.
#[derive(Debug)]
pub struct Device {
    /// Name and descriptors of the TAP device.
    pub parts: Parts,
    /// Socket to query the kernel for the sockets in the namespace.
    pub sockets: Option<SockDiag>,
    /// Remarks to print for the user.
    pub remarks: Vec<String>,
}

/// JSON content of the packet: a [`Device`] without its descriptors, or an error message.
#[derive(Debug, Serialize, Deserialize)]
enum Words {
    Made { name: String, udp_segmentation: bool, sockets: Option<Facts>, remarks: Vec<String> },
    Failed(String),
}

/// Maximum length of the JSON content in bytes. The kernel truncates longer content, which the
/// receiver then refuses.
const WORDS_MAX: usize = 16 << 10;

/// Sends the device to towpath, or the error that prevented its creation.
pub fn send(owner: BorrowedFd<'_>, device: Result<&Device, &anyhow::Error>) -> Result<()> {
    let words = match device {
        Ok(Device { parts, sockets, remarks }) => Words::Made {
            name: parts.name.clone(),
            udp_segmentation: parts.udp_segmentation,
            sockets: sockets.as_ref().map(|sockets| sockets.facts),
            remarks: remarks.clone(),
        },
        Err(error) => Words::Failed(format!("{error:#}")),
    };
    let words = serde_json::to_vec(&words)?;
    let mut fds = Vec::new();
    if let Ok(Device { parts, sockets, .. }) = &device {
        fds.push(parts.fd.as_fd());
        fds.extend(sockets.as_ref().map(|sockets| sockets.socket.as_fd()));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    }
    sendmsg(owner, &[IoSlice::new(&words)], &mut ancillary, SendFlags::NOSIGNAL)
        .context("sendmsg")?;
    Ok(())
}

/// Waits for the device of the guardian. `None` if the guardian has ended.
///
/// # Errors
/// Returns the error message of the guardian.
pub fn receive(guardian: BorrowedFd<'_>) -> Result<Option<Device>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
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
    let mut fds = ancillary.drain().flat_map(|part| match part {
        RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<OwnedFd>>(),
        _ => Vec::new(),
    });
    match serde_json::from_slice(&words[..received.bytes])? {
        Words::Failed(why) => bail!(why),
        Words::Made { name, udp_segmentation, sockets, remarks } => {
            let mut next = || fds.next().context("a descriptor of the namespace is missing");
            let parts = Parts { fd: next()?.into(), name, udp_segmentation };
            let diag = |facts| next().map(|socket| SockDiag::new(socket, facts));
            let sockets = sockets.map(diag).transpose()?;
            Ok(Some(Device { parts, sockets, remarks }))
        }
    }
}
