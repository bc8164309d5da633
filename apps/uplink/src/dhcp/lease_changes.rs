//! Applies the leases of a DHCP client to a running engine.

use std::net::IpAddr;

use towpath_dhcp::{Lease, LeaseRoute};
use towpath_engine::{Change, How, Refused, Remote, RouteSpec};
use towpath_stack::IfaceId;
use towpath_tcp::Instant;

use crate::uplink::now_ns;

/// Metric of routes from leases, to which the interface number is added. So equal routes of leases
/// at several interfaces can coexist. Routes that the operator sets usually have metric 0, and are
/// preferred.
const METRIC: u32 = 100;

/// Returns the metric of the routes that leases of an interface have.
pub fn lease_metric(iface: IfaceId) -> u32 {
    METRIC + u32::from(iface.0)
}

/// The address and the routes that a lease has added to an interface.
pub(super) struct LeaseApplier {
    remote: Remote,
    iface: IfaceId,
    lease: Option<Lease>,
}

impl LeaseApplier {
    /// Creates an applier without a lease.
    pub fn new(remote: Remote, iface: IfaceId) -> Self {
        Self { remote, iface, lease: None }
    }

    /// Returns the lease that is currently applied.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Applies a new or extended lease.
    ///
    /// # Errors
    /// Returns an error message with the reason why the stack rejects the lease. Nothing of the
    /// lease is applied then.
    pub fn apply(&mut self, lease: &Lease) -> Result<(), String> {
        let now = Instant(now_ns());
        if let Some(known) = self.lease.clone().filter(|known| known.address == lease.address) {
            let mut list = vec![self.lifetime(lease, now)];
            let is_gone = |route: &&LeaseRoute| !lease.routes.contains(route);
            list.extend(known.routes.iter().filter(is_gone).map(|it| self.without(it)));
            list.extend(lease.routes.iter().map(|route| self.with(route, lease)));
            if self.change(list).is_ok() {
                self.lease = Some(lease.clone());
                return Ok(());
            }
        }
        // Replace the whole lease: its address is new, or extending it failed, because the operator
        // has removed the address or a route.
        self.remove();
        let mut list = vec![
            Change::AddAddress { iface: self.iface, prefix: lease.address },
            self.lifetime(lease, now),
        ];
        list.extend(lease.routes.iter().map(|route| self.with(route, lease)));
        self.change(list.clone()).map_err(|Refused { at, why }| match list.get(at) {
            Some(Change::SetRoute(route, _)) => format!("the route to {}: {why}", route.prefix),
            _ => format!("the address {}: {why}", lease.address),
        })?;
        self.lease = Some(lease.clone());
        Ok(())
    }

    /// Removes the address and the routes of the lease. Some may be gone already: the operator has
    /// removed them, or the address's lifetime has ended.
    pub fn remove(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let (iface, addr, len) = (self.iface, IpAddr::V4(lease.ip()), Some(lease.address.len()));
        let routes = lease.routes.iter().map(|route| self.without(route));
        for change in routes.chain([Change::RemoveAddress { iface, addr, len }]) {
            let _ = self.change(vec![change]);
        }
    }

    fn lifetime(&self, lease: &Lease, now: Instant) -> Change {
        let lifetime = lease.valid_until.map(|until| until.since(now));
        Change::SetLifetime { iface: self.iface, addr: IpAddr::V4(lease.ip()), lifetime }
    }

    fn with(&self, route: &LeaseRoute, lease: &Lease) -> Change {
        // Mark the next hop as on-link if it is outside the network of the address, as for routers
        // that servers of some providers assign.
        let is_far = route.via.is_some_and(|via| !lease.address.contains(via.into()));
        Change::SetRoute(RouteSpec { on_link: is_far, ..self.spec(route) }, How::Replace)
    }

    fn without(&self, route: &LeaseRoute) -> Change {
        Change::RemoveRoute(self.spec(route))
    }

    fn spec(&self, route: &LeaseRoute) -> RouteSpec {
        RouteSpec {
            next_hop: route.via.map(IpAddr::V4),
            iface: Some(self.iface),
            metric: Some(lease_metric(self.iface)),
            ..RouteSpec::to(route.prefix)
        }
    }

    /// Applies changes to the engine. Succeeds if the engine has ended.
    fn change(&self, changes: Vec<Change>) -> Result<(), Refused> {
        self.remote.apply(changes).map_or(Ok(()), |applied| applied.map(|_| ()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread::spawn;
    use std::time::Duration;

    use towpath_engine::{Engine, EngineConfig, NetState};
    use towpath_wire::Prefix;

    use super::*;

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().expect("an address")
    }

    fn lease(address: &str, routes: &[(&str, &str)]) -> Lease {
        let now = Instant(now_ns());
        let route = |(prefix, via): &(&str, &str)| LeaseRoute {
            prefix: prefix.parse().expect("a prefix"),
            via: Some(ip(via)),
        };
        Lease {
            address: address.parse().expect("a prefix"),
            server: ip("10.9.0.1"),
            routes: routes.iter().map(route).collect(),
            nameservers: Vec::new(),
            domain: None,
            valid_until: Some(now + Duration::from_secs(3600)),
            renew_at: Some(now + Duration::from_secs(1800)),
            rebind_at: Some(now + Duration::from_secs(3000)),
        }
    }

    fn addresses(net: &NetState) -> Vec<(String, u64)> {
        let all = net.interfaces[0].addresses.iter();
        let of_leases = all.filter_map(|known| {
            let left = known.valid_until?.since(net.now).as_secs();
            Some((known.prefix.to_string(), left))
        });
        of_leases.collect()
    }

    fn routes(net: &NetState) -> Vec<String> {
        let of_leases = net.routes.iter().filter(|route| route.metric >= METRIC);
        of_leases.map(|it| format!("{} {:?}", it.prefix, it.next_hop)).collect()
    }

    #[test]
    fn engine_has_address_and_routes_of_the_lease() {
        let engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let remote = engine.remote();
        let thread = spawn(|| engine.run());
        let mut applier = LeaseApplier::new(remote.clone(), IfaceId::LOOPBACK);
        let net = || remote.net().expect("it runs");
        // Test a router that is outside the network of the address.
        let first = lease("10.9.0.7/32", &[("0.0.0.0/0", "10.9.0.1"), ("10.8.0.0/16", "10.9.0.2")]);
        applier.apply(&first).expect("it is valid");
        let [(address, left)] = &addresses(&net())[..] else { panic!("one address") };
        assert_eq!(address, "10.9.0.7/32");
        assert!((3500..=3600).contains(left), "{left}");
        assert_eq!(routes(&net()).len(), 2);

        let mut longer = lease("10.9.0.7/32", &[("0.0.0.0/0", "10.9.0.1")]);
        longer.valid_until = Some(Instant(now_ns()) + Duration::from_secs(9000));
        applier.apply(&longer).expect("it is valid");
        assert!(addresses(&net())[0].1 > 8000);
        assert_eq!(routes(&net()), ["0.0.0.0/0 Some(10.9.0.1)"]);

        let addr = IpAddr::V4(ip("10.9.0.7"));
        let removal = Change::RemoveAddress { iface: IfaceId::LOOPBACK, addr, len: None };
        remote.apply(vec![removal]).expect("it runs").expect("it is there");
        applier.apply(&longer).expect("the address is added again");
        assert_eq!(addresses(&net()).len(), 1);

        applier.apply(&lease("10.9.1.9/24", &[])).expect("it is valid");
        assert_eq!((addresses(&net())[0].0.as_str(), routes(&net()).len()), ("10.9.1.9/24", 0));
        let taken: Prefix = "10.9.2.9/24".parse().expect("a prefix");
        let add = Change::AddAddress { iface: IfaceId::LOOPBACK, prefix: taken };
        remote.apply(vec![add]).expect("it runs").expect("it is new");
        let refused = applier.apply(&lease("10.9.2.9/24", &[])).expect_err("the operator's");
        assert_eq!(refused, "the address 10.9.2.9/24: File exists");
        assert_eq!((applier.lease(), addresses(&net()).len()), (None, 0));
        applier.remove();
        remote.stop();
        thread.join().expect("it does not panic");
    }
}
