//! Why a link cannot be opened.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use towpath_tap::HostError;
use towpath_wire::Prefix;

use crate::device::driver::DeviceDriver;
use crate::publish::Publish;

pub(crate) type Result<T> = std::result::Result<T, PlanError>;

/// Reason why a [`Plan`](crate::Plan) cannot be carried out. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The MTU is not one that the link can have.
    #[error("an MTU of {mtu}: {link} takes 1280 to {most} bytes")]
    Mtu {
        /// The MTU that was asked for, in bytes.
        mtu: u32,
        /// The largest that the link takes.
        most: u32,
        /// The link, as "a TAP device", or the name of an interface.
        link: String,
    },
    /// A name is to lead to this host, and the stack has its addresses on a network of others.
    #[error(
        "a name of --add-host leads to host-gateway, and a stack on {link} has no address of this \
         host: give the address"
    )]
    HostUnknown {
        /// The link.
        link: String,
    },
    /// A port is published, and the link is a device.
    #[error(
        "{0} is published, which a stack with a device has no use for: others reach the stack's \
         own address; leave one of the two out"
    )]
    PublishWithDevice(Publish),
    /// The device needs an address, which the sentence describes.
    #[error("{0}: give one, as 192.0.2.7/24")]
    NoAddress(String),
    /// Ports of the kernel's addresses were asked for, and the link is no interface.
    #[error("ports of the kernel's addresses need an interface: leave them out, or give one")]
    PortsWithoutInterface,
    /// An address whose ports are to be shared is not the kernel's.
    #[error(
        "{own}: the kernel does not have it on {interface}, and ports are those of its addresses"
    )]
    AddressMissing {
        /// The address that was asked for.
        own: Prefix,
        /// The interface.
        interface: String,
    },
    /// The kernel has no address on the interface.
    #[error(
        "the kernel has no address on {interface}, whose ports the stack could have: \
         `sudo ip addr add 192.0.2.7/24 dev {interface}`"
    )]
    NoKernelAddress {
        /// The interface.
        interface: String,
    },
    /// The device has one queue, and more than one shard was asked for.
    #[error("a stack on {device} has one shard: leave out the number of shards")]
    OneShard {
        /// The interface, or the file.
        device: String,
    },
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
    /// The host itself has an address on the device that leads to the stack.
    #[error(
        "{own}: this host has that address on {interface} itself, and would answer in place of the \
         stack; give the stack another address of that network"
    )]
    AddressOfHost {
        /// The address that was asked for.
        own: Prefix,
        /// The device.
        interface: String,
    },
    /// Another run has the address on the interface.
    #[error(
        "{address}: another run of towpath has it on {interface} already (process {process}): \
         end that run, or give another address"
    )]
    AddressClaimed {
        /// The address that was asked for.
        address: IpAddr,
        /// The interface.
        interface: String,
        /// Process of the run that has the address.
        process: u32,
    },
    /// Another run has one of the ports on the interface.
    #[error(
        "{wanted}: another run of towpath has {ports} of {address} on {interface} already \
         (process {process}): end that run, or give other ports"
    )]
    PortsClaimed {
        /// The range that was asked for.
        wanted: String,
        /// The range of the run that has some of the ports.
        ports: String,
        /// The address.
        address: IpAddr,
        /// The interface.
        interface: String,
        /// Process of that run.
        process: u32,
    },
    /// No network is free for the two ends of a TAP device.
    #[error(
        "this host has routes to all of 10.77.0.0/16, 172.31.0.0/16 and 192.168.0.0/16: \
         give an address"
    )]
    NoNetwork,
    /// The device cannot be opened.
    #[error(transparent)]
    Device(DeviceError),
    /// The device cannot move to PROGRAM's process.
    #[error("{device} with an engine in PROGRAM's process: {why}")]
    NotInline {
        /// Name of the device.
        device: &'static str,
        /// The obstacle.
        why: &'static str,
    },
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

/// Error of a device that cannot be opened. Its message contains those of its causes.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct DeviceError {
    /// Name of the device, as `xdp`.
    pub device: &'static str,
    /// Kind of the system's error, or `PermissionDenied` if the system refused nothing.
    pub kind: ErrorKind,
    message: String,
}

impl PlanError {
    /// Returns a function that makes an error of `driver` from its cause.
    pub(crate) fn of_device<E>(driver: &DeviceDriver) -> impl Fn(E) -> Self + use<E>
    where
        E: std::error::Error,
    {
        let device = driver.name;
        move |error| {
            let (mut message, mut kind) = (error.to_string(), ErrorKind::PermissionDenied);
            let mut cause = error.source();
            while let Some(error) = cause {
                let text = error.to_string();
                kind = error.downcast_ref().map_or(kind, io::Error::kind);
                if !message.contains(&text) {
                    message.push_str(": ");
                    message.push_str(&text);
                }
                cause = error.source();
            }
            Self::Device(DeviceError { device, kind, message })
        }
    }
}

/// Returns a function that makes an error from that of the kernel in a step.
pub(crate) fn system(step: &'static str) -> impl Fn(io::Error) -> PlanError {
    move |source| PlanError::System { step, source }
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
