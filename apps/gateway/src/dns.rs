//! DNS forwarder: port 53 of an address in the program's network, which queries the host's
//! nameservers.
//!
//! Nameservers in /etc/resolv.conf may be on the host's loopback (systemd-resolved, dnsmasq), which
//! the program cannot reach because it has its own stack. Therefore the forwarder interprets the
//! file as the C library's resolver does and tries the nameservers in turn (`nameservers`).
//! [`Forwarder`] handles queries over UDP individually. TCP connections go to the first nameserver
//! that accepts (`tcp`); their messages are not parsed.

mod forwarder;
mod message;

pub(crate) use forwarder::Forwarder;
