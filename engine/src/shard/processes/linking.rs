//! Opens the channels of processes, connects them with the rings of programs, and removes them.

use std::os::fd::AsFd;

use crate::ids::ChannelId;
use crate::link::ChannelLink;
use crate::mail::{Newcomer, ShardReport};
use crate::shard::net::Net;
use crate::shard::net::sources::ShardSource;
use crate::shard::processes::Processes;
use crate::shard::sockets::Sockets;

impl Processes {
    /// Opens the channel of a process, which has no sockets yet. From now on the end of the process
    /// is detected. Its commands are read after it has received its rings.
    pub(crate) fn open(&mut self, sockets: &mut Sockets, net: &mut Net, newcomer: Newcomer) {
        let id = newcomer.id;
        sockets.payers.set(id, newcomer.family);
        self.channels.open(newcomer);
        let Some(attached) = self.channels.get_mut(id) else { return };
        attached.is_watched = net.poller.add(attached.life.as_fd(), ShardSource::Gone(id)).is_ok();
        if !attached.is_watched {
            // The poller cannot watch the process, so its end would not be detected. Remove the
            // process.
            self.channels.to_cut_off.push(id);
        }
    }

    /// Connects a channel with the rings and notification descriptors of a new process image.
    pub(crate) fn link(&mut self, net: &mut Net, id: ChannelId, link: ChannelLink) {
        let Some(attached) = self.channels.get_mut(id) else {
            return self.notices.push(ShardReport::Unlinked(id, link.into_notifiers()));
        };
        if net.poller.add(link.engine_bell.as_fd(), ShardSource::Doorbell).is_err() {
            // The poller cannot watch the notification descriptor, so commands would not wake a
            // sleeping shard. Cut the process off.
            self.channels.to_cut_off.push(id);
            return self.notices.push(ShardReport::Unlinked(id, link.into_notifiers()));
        }
        if let Some(old) = attached.link.replace(link) {
            self.unlink(net, id, old);
        }
    }

    /// Removes the rings and notification descriptors of a process image that has ended or was cut
    /// off.
    pub(crate) fn unlink(&mut self, net: &mut Net, id: ChannelId, link: ChannelLink) {
        net.poller.remove(link.engine_bell.as_fd());
        self.notices.push(ShardReport::Unlinked(id, link.into_notifiers()));
    }

    /// Removes a channel, whose ID the registry (process manager) may then reuse.
    pub(crate) fn forget(&mut self, net: &mut Net, id: ChannelId) {
        let Some(mut attached) = self.channels.remove(id) else { return };
        if let Some(link) = attached.link.take() {
            self.unlink(net, id, link);
        }
        self.notices.push(ShardReport::Ended(id, attached.life));
    }
}
