//! Channels of processes: opened, linked to the rings of a process image, and forgotten.

use std::os::fd::AsFd;

use crate::ids::ChannelId;
use crate::link::ChannelLink;
use crate::mail::{Newcomer, ShardReport};
use crate::shard::net::Net;
use crate::shard::net::sources::ShardSource;
use crate::shard::processes::Processes;
use crate::shard::sockets::Sockets;

impl Processes {
    /// Lets in a process that holds nothing yet. Its commands are heard when it has a link; its end
    /// is noticed from now on.
    pub(crate) fn open(&mut self, sockets: &mut Sockets, net: &mut Net, newcomer: Newcomer) {
        let id = newcomer.id;
        sockets.payers.set(id, newcomer.family);
        self.channels.open(newcomer);
        let Some(attached) = self.channels.get_mut(id) else { return };
        attached.is_watched = net.poller.add(attached.life.as_fd(), ShardSource::Gone(id)).is_ok();
        if !attached.is_watched {
            // Its end would never be noticed.
            self.channels.to_cut_off.push(id);
        }
    }

    /// Links a channel to the rings and notifications of a new process image.
    pub(crate) fn link(&mut self, net: &mut Net, id: ChannelId, link: ChannelLink) {
        let Some(attached) = self.channels.get_mut(id) else {
            return self.notices.push(ShardReport::Unlinked(id, link.into_notifiers()));
        };
        if net.poller.add(link.engine_bell.as_fd(), ShardSource::Doorbell).is_err() {
            // Without the bell in the poller the process would not be heard while the shard sleeps.
            self.channels.to_cut_off.push(id);
            return self.notices.push(ShardReport::Unlinked(id, link.into_notifiers()));
        }
        if let Some(old) = attached.link.replace(link) {
            self.unlink(net, id, old);
        }
    }

    /// A process image is gone, or was cut off: its rings are not looked at any more, and its bells
    /// are closed.
    pub(crate) fn unlink(&mut self, net: &mut Net, id: ChannelId, link: ChannelLink) {
        net.poller.remove(link.engine_bell.as_fd());
        self.notices.push(ShardReport::Unlinked(id, link.into_notifiers()));
    }

    /// Nothing of a channel is left but its id, which is used again.
    pub(crate) fn forget(&mut self, net: &mut Net, id: ChannelId) {
        let Some(mut attached) = self.channels.remove(id) else { return };
        if let Some(link) = attached.link.take() {
            self.unlink(net, id, link);
        }
        self.notices.push(ShardReport::Ended(id, attached.life));
    }
}
