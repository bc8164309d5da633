//! Addresses of a network interface.

use core::net::IpAddr;
use core::ops::Deref;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::net::hash::Cheap;
use crate::net::iface::Address;

/// Addresses of an interface in the order of insertion, with a hash map as index. An address is
/// looked up for each ARP request or neighbour solicitation, and an interface may have many
/// addresses.
#[derive(Debug)]
pub(super) struct Addresses {
    list: Vec<Address>,
    /// Index in `list` of each address.
    places: HashMap<IpAddr, usize, Cheap>,
    /// Copy of the address list that configuration snapshots share. `None` after a change, until
    /// the next snapshot is created.
    shared: Option<Arc<[Address]>>,
}

impl Deref for Addresses {
    type Target = [Address];

    fn deref(&self) -> &[Address] {
        &self.list
    }
}

impl Addresses {
    pub(super) fn new(hash: Cheap) -> Self {
        Self { list: Vec::new(), places: HashMap::with_hasher(hash), shared: None }
    }

    pub(super) fn find(&self, addr: IpAddr) -> Option<&Address> {
        self.places.get(&addr).map(|at| &self.list[*at])
    }

    pub(super) fn find_mut(&mut self, addr: IpAddr) -> Option<&mut Address> {
        self.shared = None;
        self.places.get(&addr).map(|at| &mut self.list[*at])
    }

    /// Iterates over all addresses, to change their state. Callers must not change the IP address
    /// itself, because it is the key of the index.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Address> {
        self.shared = None;
        self.list.iter_mut()
    }

    /// Returns a copy of the list for a snapshot. As long as the list does not change, the same
    /// allocation is returned.
    pub(super) fn shared(&mut self) -> Arc<[Address]> {
        let Self { list, shared, .. } = self;
        Arc::clone(shared.get_or_insert_with(|| list.as_slice().into()))
    }

    /// Adds an address that is not in the list.
    pub(super) fn push(&mut self, address: Address) {
        self.shared = None;
        self.places.insert(address.addr(), self.list.len());
        self.list.push(address);
    }

    /// Removes an address from the list. Returns false if it is not in the list.
    pub(super) fn remove(&mut self, addr: IpAddr) -> bool {
        let Some(at) = self.places.remove(&addr) else { return false };
        self.shared = None;
        self.list.remove(at);
        for (place, address) in self.list.iter().enumerate().skip(at) {
            self.places.insert(address.addr(), place);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use towpath_wire::Prefix;

    use super::*;
    use crate::net::iface::{AddressState, Origin};

    #[test]
    fn each_is_found_whatever_was_removed() {
        let mut addresses = Addresses::new(Cheap(1));
        let nth = |n: u8| IpAddr::from([10, 0, 0, n]);
        for n in 0..10 {
            addresses.push(Address {
                prefix: Prefix::new(nth(n), 24).unwrap(),
                state: AddressState::Preferred,
                origin: Origin::Static,
                preferred_until: None,
                valid_until: None,
                dad_count: n,
            });
        }
        assert!(addresses.remove(nth(3)) && addresses.remove(nth(9)) && addresses.remove(nth(0)));
        assert!(!addresses.remove(nth(3)));
        for n in 0..10 {
            let expected = (![0, 3, 9].contains(&n)).then_some(n);
            assert_eq!(addresses.find(nth(n)).map(|address| address.dad_count), expected);
            assert_eq!(addresses.find_mut(nth(n)).map(|address| address.dad_count), expected);
            assert_eq!(*addresses.shared(), *addresses);
        }
        assert!(Arc::ptr_eq(&addresses.shared(), &addresses.shared()));
        let order: Vec<_> = addresses.iter().map(|address| address.dad_count).collect();
        assert_eq!(order, [1, 2, 4, 5, 6, 7, 8]);
    }
}
