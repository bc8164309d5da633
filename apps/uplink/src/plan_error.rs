//! Why a link cannot be opened.

use std::io::{self, ErrorKind};

use towpath_tap::{HostError, OpenError};
use towpath_wire::Prefix;

use crate::publish::Publish;

/// Why a [`Plan`](crate::Plan) cannot be carried out. Each says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The MTU is not one that the link can have.
    #[error(
        "an MTU of {mtu}: {kind} takes 1280 to {most} bytes",
        kind = if *tap { "a TAP device" } else { "the gateway" }
    )]
    Mtu {
        /// The MTU that was asked for, in bytes.
        mtu: u32,
        /// The largest that the link takes.
        most: u32,
        /// Whether the link is a TAP device.
        tap: bool,
    },
    /// A port is published, and the link is a TAP device.
    #[error(
        "{0} is published, which a stack with a TAP device has no use for: the host reaches the \
         stack's own address; leave one of the two out"
    )]
    PublishWithTap(Publish),
    /// Two of the published ports are one port of this host.
    #[error("{0} and {1} are the same port of this host; choose another HOSTPORT for one")]
    GivenTwice(Publish, Publish),
    /// The host does not let this process listen there.
    #[error(
        "{publish}: cannot listen on {host} of the host: {error}{advice}",
        host = publish.host,
        advice = listen_advice(publish, error)
    )]
    PortTaken {
        /// The port that was to be published.
        publish: Publish,
        /// The error of the host, as EADDRINUSE, or EACCES for a low port.
        error: io::Error,
    },
    /// The host has the network of an address already.
    #[error("{own}: {why}; choose another network")]
    AddressTaken {
        /// The address that was asked for.
        own: Prefix,
        /// Where the host has it.
        why: String,
    },
    /// No network is free for the two ends of a TAP device.
    #[error(
        "this host has routes to all of 10.77.0.0/16, 172.31.0.0/16 and 192.168.0.0/16: \
         give an address"
    )]
    NoNetwork,
    /// The TAP device cannot be opened.
    #[error(transparent)]
    Tap(#[from] OpenError),
    /// The end of the TAP device on this host cannot be set up.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Packets cannot be recorded.
    #[error("packets cannot be recorded")]
    Capture(#[source] io::Error),
    /// The operating system refused a step.
    #[error("cannot {step}")]
    System {
        /// The step.
        step: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// The rest of a sentence that says why the host refuses a port.
fn listen_advice(publish: &Publish, error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse if publish.at_free_port() => {
            ": none is free (sysctl net.ipv4.ip_local_port_range); choose a HOSTPORT"
        }
        ErrorKind::AddrInUse => ": another process has this port; choose another HOSTPORT",
        ErrorKind::PermissionDenied => ": ports below 1024 are for root; choose a higher HOSTPORT",
        ErrorKind::AddrNotAvailable => ": HOSTADDR is no address of this host",
        _ => "",
    }
}
