//! Uplinks by a TAP device: its queues, their steering, and this host's end.

use towpath_stack::Owners;
use towpath_tap::{OpenError, Parts, Steering, Tap};
use towpath_wire::Prefix;

use crate::address::other_host;
use crate::plan::{Connected, Parted, Plan, Remark, Result, list, random_mac};
use crate::shape::{Link, Shape};
use crate::tap_network::Choosing;

/// A device, and the stack behind it.
struct Tapped {
    /// Queues of the device, for each shard one.
    queues: Vec<Tap>,
    shape: Shape,
    facts: String,
}

impl Plan {
    pub(crate) fn over_tap(&self, name: Option<String>, seed: &[u8; 32]) -> Result<Connected> {
        let mut queues = self.queues(name)?;
        // As soon as the device is up, this host sends.
        self.steer(&mut queues, seed);
        let Tapped { mut queues, shape, facts } = self.set_up(queues)?;
        let tap = queues.first_mut().expect("a device is opened with a queue");
        let (tell, gone) = (self.tell.clone(), format!("the TAP device {}", tap.name()));
        tap.on_gone(move || tell.remark(Remark::DeviceGone(gone)));
        self.finish(queues, &shape, facts)
    }

    pub(crate) fn parted_tap(&self, name: Option<String>) -> Result<Parted> {
        let Tapped { mut queues, shape, facts } = self.set_up(self.queues(name)?)?;
        let tap = queues.pop().expect("a device is opened with a queue");
        let Parts { fd, name, udp_segmentation } = tap.into_parts();
        let link = Link::Tap { name, udp_segmentation };
        Ok(Parted { link, shape, descriptors: vec![fd.into()], facts })
    }

    /// A device with a queue a shard.
    fn queues(&self, name: Option<String>) -> Result<Vec<Tap>> {
        let options = towpath_tap::Options { name };
        let queues = match Tap::open_queues(&options, self.shards) {
            Err(OpenError::OneQueue { .. }) if self.auto => Tap::open_queues(&options, 1),
            opened => opened,
        };
        Ok(queues?)
    }

    /// Chooses the addresses, and sets up this host's end of a device.
    fn set_up(&self, queues: Vec<Tap>) -> Result<Tapped> {
        let tap = queues.first().expect("a device is opened with a queue");
        let choosing = Choosing::begin()?;
        let addresses = choosing.addresses(tap.name(), &self.addresses)?;
        let hosts: Vec<_> =
            addresses.iter().filter_map(|own| Some((other_host(own)?, own.len()))).collect();
        towpath_tap::set_up_host(tap.name(), self.mtu(), &hosts)?;
        drop(choosing);
        let own = list(addresses.iter().map(Prefix::addr));
        let host = list(hosts.iter().map(|(ip, _)| *ip));
        let facts = format!("{own} on {} (this host is {host})", tap.name());
        let shape = self.on_ethernet(random_mac()?, addresses, self.mtu());
        Ok(Tapped { queues, shape, facts })
    }

    /// Has the kernel put packets into the queue of the shard that owns their flow. Where it does
    /// not, shards hand packets on. Unless several shards were requested, there is then one queue
    /// and one shard.
    fn steer(&self, queues: &mut Vec<Tap>, seed: &[u8; 32]) {
        let [tap, _, ..] = &queues[..] else { return };
        let owners = Owners::new(seed, queues.len());
        let steering = Steering { key: owners.key(), queues: owners.count() as u32 };
        let Err(error) = tap.steer(Some(&steering)) else { return };
        // A run before this one may have left its own program in a device that stays. The call
        // fails where the kernel has none: there is no program either then.
        let _ = tap.steer(None);
        if self.auto {
            return queues.truncate(1);
        }
        self.tell.remark(Remark::Warning(format!(
            "packets come in at any shard of {}, which hands them on and costs time: steering them \
             needs CAP_BPF and Linux 4.16 ({error})",
            tap.name()
        )));
    }
}
