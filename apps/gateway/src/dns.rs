//! The forwarder of DNS: an address of the program's network whose port 53 asks the host's nameservers.
//!
//! What /etc/resolv.conf names may be on the host's loopback (systemd-resolved, dnsmasq), where the program
//! has a stack of its own. So the forwarder does what the C library's resolver does with that file: it asks all
//! nameservers in it, one after the other. Questions by UDP are asked by [`Forwarder`], one by one; a connection
//! by TCP goes to the first nameserver that accepts one (see `tcp`), and what is said on it is not looked at.

mod forwarder;
mod message;
mod nameservers;
mod resolv_conf;

pub(crate) use forwarder::Forwarder;
pub use nameservers::Nameserver;
pub(crate) use nameservers::{Nameservers, Tour};

/// The port of DNS, on both sides of the forwarder.
pub(crate) const PORT: u16 = 53;
