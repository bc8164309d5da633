//! Opens channels of processes, links them to rings of process images, and removes them.

use std::os::fd::AsFd;

use crate::ids::ChannelId;
use crate::link::ChannelLink;
use crate::mail::{Newcomer, ShardReport};
use crate::shard::net::Net;
use crate::shard::net::sources::ShardSource;
use crate::shard::processes::Processes;
use crate::shard::sockets::Sockets;

impl Processes {
    /// Opens the channel of a process without sockets. Its commands are read once it has a link,
    /// and its end is detected from now on.
    pub(crate) fn open(&mut self, sockets: &mut Sockets, net: &mut Net, newcomer: Newcomer) {
        let id = newcomer.id;
        sockets.payers.set(id, newcomer.family);
        self.channels.open(newcomer);
        let Some(attached) = self.channels.get_mut(id) else { return };
        attached.is_watched = net.poller.add(attached.life.as_fd(), ShardSource::Gone(id)).is_ok();
        if !attached.is_watched {
            // The end of the process could not be detected, so cut it off.
            self.channels.to_cut_off.push(id);
        }
    }

    /// Links a channel to the rings and notifications of a new process image.
    pub(crate) fn link(&mut self, net: &mut Net, id: ChannelId, link: ChannelLink) {
        let Some(attached) = self.channels.get_mut(id) else {
            return self.notices.push(ShardReport::Unlinked(id, link.into_notifiers()));
        };
        if net.poller.add(link.engine_bell.as_fd(), ShardSource::Doorbell).is_err() {
            // If the poller does not contain the notification, commands would not wake the sleeping
            // shard, so cut the process off.
            self.channels.to_cut_off.push(id);
            return self.notices.push(ShardReport::Unlinked(id, link.into_notifiers()));
        }
        if let Some(old) = attached.link.replace(link) {
            self.unlink(net, id, old);
        }
    }

    /// Removes the rings and notifications of a process image that has ended or was cut off.
    pub(crate) fn unlink(&mut self, net: &mut Net, id: ChannelId, link: ChannelLink) {
        net.poller.remove(link.engine_bell.as_fd());
        self.notices.push(ShardReport::Unlinked(id, link.into_notifiers()));
    }

    /// Removes a channel. The registry may reuse its id.
    pub(crate) fn forget(&mut self, net: &mut Net, id: ChannelId) {
        let Some(mut attached) = self.channels.remove(id) else { return };
        if let Some(link) = attached.link.take() {
            self.unlink(net, id, link);
        }
        self.notices.push(ShardReport::Ended(id, attached.life));
    }
}
