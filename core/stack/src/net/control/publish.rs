//! Publishes snapshots of the configuration to the data parts.

use std::sync::Arc;

use super::interface::Interface;
use super::tables::{Changed, Control};
use crate::net::locals::Roles;
use crate::net::snapshot::{Host, Snapshot};

impl Control {
    /// Creates a new configuration snapshot for the shards if the configuration has changed. Every
    /// method that changes the configuration must call this before it returns. Otherwise packets
    /// are handled by the old snapshot.
    pub(super) fn publish(&mut self) {
        self.counters.neighbors_displaced += self.neighbors.take_displaced();
        let changed = core::mem::take(&mut self.changed);
        let host_changed = changed != Changed::default();
        if !self.routes.take_changed() && !host_changed {
            return;
        }
        let host = match host_changed {
            true => Arc::new(self.host_with(changed)),
            false => Arc::clone(&self.snapshot.host),
        };
        let (generation, fib) = (self.routes.generation(), self.routes.fib());
        let rules = self.rules.clone();
        self.snapshot = Arc::new(Snapshot { generation, host, fib, rules });
    }

    /// Creates the part of a configuration snapshot that describes the host. Unchanged parts are
    /// shared with the previous snapshot.
    fn host_with(&mut self, changed: Changed) -> Host {
        let mut locals = self.snapshot.host.locals.clone();
        if changed.addresses {
            let mut hosts = Roles::new(self.addresses_hash);
            for interface in &self.ifaces {
                interface.addresses.iter().for_each(|address| hosts.add(interface.id, address));
            }
            locals.hosts = Arc::new(hosts);
        }
        if changed.groups {
            let mut groups = Roles::new(self.addresses_hash);
            for interface in &self.ifaces {
                interface.groups.joined().for_each(|group| groups.join(interface.id, group));
            }
            locals.groups = Arc::new(groups);
        }
        Host::new(self.ifaces.iter_mut().map(Interface::as_link).collect(), locals)
    }
}
