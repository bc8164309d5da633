//! Errors of opening a link.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use towpath_tap::HostError;
use towpath_wire::Prefix;

use crate::device::driver::DeviceDriver;
use crate::publish::Publish;

pub(crate) type Result<T> = std::result::Result<T, PlanError>;

/// Reason why the link of a [`Plan`](crate::Plan) cannot be opened. Each message advises the user
/// what to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// DHCP was requested, but the link has no broadcasts, which DHCP needs.
    #[error("DHCP needs a device that receives broadcasts, such as packet or tap, not {device}")]
    NoDhcp {
        /// Name of the device's driver, or "the gateway" without a device.
        device: &'static str,
    },
    /// The link does not support the requested MTU.
    #[error("an MTU of {mtu}: {link} takes 1280 to {most} bytes")]
    Mtu {
        /// Requested MTU in bytes.
        mtu: u32,
        /// Maximum MTU of the link in bytes.
        most: u32,
        /// Kind of link, such as "a TAP device", or the name of an interface, for the message.
        link: String,
    },
    /// `--add-host` maps a name to host-gateway (this host), but this host has no address on the
    /// link.
    #[error(
        "a name of --add-host leads to host-gateway, and a stack on {link} has no address of this \
         host: give the address"
    )]
    HostUnknown {
        /// Kind of link, such as "a TAP device", for the message.
        link: String,
    },
    /// A port is published although the link is a device. Other hosts reach the stack's addresses
    /// directly.
    #[error(
        "{0} is published, which a stack with a device has no use for: others reach the stack's \
         own address; leave one of the two out"
    )]
    PublishWithDevice(Publish),
    /// The device needs an address, but the user gave none. Contains the beginning of the message.
    #[error("{0}: give one, as 192.0.2.7/24")]
    NoAddress(String),
    /// `--ports` was given, but the link is no interface of the kernel.
    #[error("ports of the kernel's addresses need an interface: leave them out, or give one")]
    PortsWithoutInterface,
    /// `--ports` shares ports of one of the kernel's addresses, but the kernel does not have this
    /// address.
    #[error(
        "{own}: the kernel does not have it on {interface}, and ports are those of its addresses"
    )]
    AddressMissing {
        /// Address that the user requested for the stack.
        own: Prefix,
        /// Name of the interface.
        interface: String,
    },
    /// `--ports` shares ports of the kernel's addresses, but the kernel has no address on the
    /// interface.
    #[error(
        "the kernel has no address on {interface}, whose ports the stack could have: \
         `sudo ip addr add 192.0.2.7/24 dev {interface}`"
    )]
    NoKernelAddress {
        /// Name of the interface.
        interface: String,
    },
    /// More than one shard was requested, but the device has only one queue.
    #[error("a stack on {device} has one shard: leave out the number of shards")]
    OneShard {
        /// Name of the interface or file.
        device: String,
    },
    /// Two of the published ports are the same port of this host.
    #[error("{0} and {1} are the same port of this host; choose another HOSTPORT for one")]
    GivenTwice(Publish, Publish),
    /// The host does not allow this process to bind the port.
    #[error(
        "{publish}: cannot listen on {host} of the host: {error}{advice}",
        host = publish.host,
        advice = listen_advice(publish, error)
    )]
    PortTaken {
        /// Published port that cannot be bound.
        publish: Publish,
        /// Error of the host's kernel, such as EADDRINUSE, or EACCES for a privileged port.
        error: io::Error,
    },
    /// The network of a requested address is in use on the host.
    #[error("{own}: {why}; choose another network")]
    AddressTaken {
        /// Address that the user requested for the stack.
        own: Prefix,
        /// Part of the message: how the host uses the network.
        why: String,
    },
    /// The host itself has the requested address on the device that connects it with the stack.
    #[error(
        "{own}: this host has that address on {interface} itself, and would answer in place of the \
         stack; give the stack another address of that network"
    )]
    AddressOfHost {
        /// Address that the user requested for the stack.
        own: Prefix,
        /// Name of the device.
        interface: String,
    },
    /// Another run has claimed the address on the interface.
    #[error(
        "{address}: another run of towpath has it on {interface} already (process {process}): \
         end that run, or give another address"
    )]
    AddressClaimed {
        /// Address that the user requested for the stack.
        address: IpAddr,
        /// Name of the interface.
        interface: String,
        /// Process id of the run that has claimed the address.
        process: u32,
    },
    /// Another run has a DHCP client on the interface, with the same Ethernet address.
    #[error(
        "another run of towpath uses DHCP on {interface} already (process {process}), with the \
         same Ethernet address: end that run, or give an address"
    )]
    DhcpClaimed {
        /// Name of the interface.
        interface: String,
        /// Process id of the run that has the client.
        process: u32,
    },
    /// Another run has claimed some of the ports on the interface.
    #[error(
        "{wanted}: another run of towpath has {ports} of {address} on {interface} already \
         (process {process}): end that run, or give other ports"
    )]
    PortsClaimed {
        /// Port range that the user requested.
        wanted: String,
        /// Port range of the other run that overlaps with the requested one.
        ports: String,
        /// Address on which both runs claim the ports.
        address: IpAddr,
        /// Name of the interface.
        interface: String,
        /// Process id of the other run.
        process: u32,
    },
    /// No private network is free for the two ends of a TAP device.
    #[error(
        "this host has routes to all of 10.77.0.0/16, 172.31.0.0/16 and 192.168.0.0/16: \
         give an address"
    )]
    NoNetwork,
    /// The device cannot be opened.
    #[error(transparent)]
    Device(DeviceError),
    /// The device cannot be passed to PROGRAM's process.
    #[error("{device} with an engine in PROGRAM's process: {why}")]
    NotInline {
        /// Name of the device's driver.
        device: &'static str,
        /// Reason why the device cannot be passed to another process.
        why: &'static str,
    },
    /// The host's end of the TAP device cannot be configured.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The capture file cannot be written.
    #[error("packets cannot be recorded")]
    Capture(#[source] io::Error),
    /// A system call failed.
    #[error("cannot {step}")]
    System {
        /// Step that failed, for the message.
        step: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
}

/// Error of opening a device. Its message includes the messages of its causes.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct DeviceError {
    /// Name of the device's driver, such as `xdp`.
    pub device: &'static str,
    /// Kind of the operating system's error. `PermissionDenied` if the cause is no error of the
    /// operating system.
    pub kind: ErrorKind,
    message: String,
}

impl PlanError {
    /// Returns a function that converts the cause of a failure to an error of the device's
    /// `driver`.
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

/// Returns a function that converts an error of a system call to a [`PlanError`] with the failed
/// `step`.
pub(crate) fn system(step: &'static str) -> impl Fn(io::Error) -> PlanError {
    move |source| PlanError::System { step, source }
}

/// Returns advice for the user about a port that cannot be bound, to be appended to the message.
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
