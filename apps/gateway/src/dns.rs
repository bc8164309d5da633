//! The forwarder of DNS: an address of the program's network whose port 53 asks the host's
//! nameservers.
//!
//! Nameservers in /etc/resolv.conf may be on the host's loopback (systemd-resolved, dnsmasq), where
//! the program has a stack of its own. So the forwarder does what the C library's resolver does
//! with that file: it asks all nameservers in it, one after the other (`nameservers`). Questions by
//! UDP are asked by [`Forwarder`], one by one. A connection by TCP goes to the first nameserver
//! that accepts one (`tcp`), and its messages are not looked at.

mod forwarder;
mod message;

pub(crate) use forwarder::Forwarder;
