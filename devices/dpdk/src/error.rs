//! Errors of opening a DPDK port.

use std::io;

/// Error returned when a DPDK port cannot be opened. The message tells the user what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A quote in the EAL arguments has no closing quote.
    #[error("{text:?} has a quote without its end")]
    Quotes {
        /// EAL arguments given by the user.
        text: String,
    },
    /// The user gave an EAL argument that would end this process, or share its memory with another
    /// process.
    #[error("{word} is not an argument for a stack: {why}")]
    Refused {
        /// The rejected argument.
        word: String,
        /// Reason why it is rejected.
        why: &'static str,
    },
    /// EAL was initialized before, which is possible only once per process.
    #[error("DPDK has been started in this process before: it starts once")]
    Twice,
    /// DPDK's environment abstraction layer (EAL) could not be initialized.
    #[error("DPDK does not start ({source}){advice}{log}")]
    Eal {
        /// Advice for the user, preceded by a colon; may be empty.
        advice: &'static str,
        /// Last lines of EAL's log, to be appended to the message.
        log: String,
        /// Error returned by EAL.
        source: io::Error,
    },
    /// EAL found no network port.
    #[error("DPDK found no port{advice}{log}")]
    NoPort {
        /// Advice for the user, preceded by a colon; may be empty.
        advice: &'static str,
        /// Last lines of EAL's log, to be appended to the message.
        log: String,
    },
    /// EAL found several network ports, but only one can be used.
    #[error(
        "DPDK found {count} ports, and a stack has one: name it by --allow=PCI-ADDRESS, or leave \
         out cards by --no-pci"
    )]
    SeveralPorts {
        /// Number of ports found.
        count: usize,
    },
    /// The port has fewer queues than there are shards (threads of the stack), each of which needs
    /// one.
    #[error("{name} has {has} queues, and {wanted} shards need one each{advice}")]
    Queues {
        /// Name of the DPDK port.
        name: String,
        /// Maximum number of queues that the port supports.
        has: usize,
        /// Required number of queues, one per shard (thread of the stack).
        wanted: usize,
        /// Advice for the user; may be empty.
        advice: &'static str,
    },
    /// The device would deliver frames to queues that no shard (thread of the stack) polls.
    #[error(
        "{name} divides frames among {has} queues, and there are {wanted} shards: give as many \
         --shards, or qpairs={wanted}"
    )]
    Spare {
        /// Name of the DPDK port.
        name: String,
        /// Number of queues of the device.
        has: usize,
        /// Number of shards, each of which polls one queue.
        wanted: usize,
    },
    /// The requested MTU exceeds that of the kernel interface on which the DPDK port is based.
    #[error(
        "{interface} takes packets of at most {most} bytes: `ip link set {interface} mtu {mtu}`"
    )]
    Mtu {
        /// Name of the kernel interface.
        interface: String,
        /// Requested MTU in bytes.
        mtu: u32,
        /// Maximum MTU of the kernel interface in bytes.
        most: u32,
    },
    /// A step of opening the port failed.
    #[error("cannot {step} of {name} ({source}){advice}{log}")]
    Step {
        /// Name of the DPDK port.
        name: String,
        /// Name of the step that failed.
        step: String,
        /// Error returned by DPDK.
        source: io::Error,
        /// Advice for the user, preceded by a colon; may be empty.
        advice: &'static str,
        /// Last lines of EAL's log, to be appended to the message.
        log: String,
    },
}

/// Creates the error that EAL found no port.
pub(crate) fn no_port(log: &str) -> OpenError {
    let advice = match advice(log, &io::ErrorKind::NotFound.into()) {
        "" => {
            ": name a device, as '--vdev=net_af_packet0,iface=eth1', or give it a card with \
             `sudo dpdk-devbind.py --bind=vfio-pci 0000:01:00.0`"
        }
        known => known,
    };
    OpenError::NoPort { advice, log: tail(log) }
}

/// Maximum number of lines of EAL's log in an error message.
const LOG_LINES: usize = 6;

/// Returns what the user can do about an error, according to EAL's log and the errno. May be empty.
pub(crate) fn advice(log: &str, source: &io::Error) -> &'static str {
    let says = |text: &str| log.contains(text);
    let is_denied = says("Permission denied")
        || says("Operation not permitted")
        || says("Could not open AF_PACKET socket");
    let errno = source.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    if says("hugepage") || says("No free 2048 kB") {
        ": give --no-huge, or reserve hugepages with `sudo sysctl vm.nr_hugepages=256`"
    } else if is_denied
        || matches!(errno, Some(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS))
    {
        ": run with sudo"
    } else if says("no driver found")
        || says("failed to parse device")
        || says("Unable to find driver")
        || says("Driver cannot attach the device")
        || says("probe failed")
    {
        ": look at the name of the device and its arguments, NAME0,KEY=VALUE; \
         `ls /usr/lib/*/dpdk/pmds-*` lists drivers"
    } else if errno == Some(rustix::io::Errno::NOMEM) {
        ": give DPDK more memory with -m 512"
    } else {
        ""
    }
}

/// Returns the last relevant lines of EAL's log, to be appended to an error message.
pub(crate) fn tail(log: &str) -> String {
    let is_telling = |line: &&str| {
        let line = line.trim();
        // Ignore lines that EAL writes to every log.
        !line.is_empty()
            && !line.contains("Detected ")
            && !line.contains("Selected IOVA")
            && !line.contains("Static memory layout")
            && !line.contains("Physical addresses are unavailable")
            && !line.starts_with("EAL: VFIO support")
    };
    let mut lines: Vec<_> = log.lines().rev().filter(is_telling).take(LOG_LINES).collect();
    lines.reverse();
    lines.iter().map(|line| format!("\n  {}", line.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_helps_is_named() {
        let none = io::Error::from_raw_os_error(22);
        let huge = "EAL: FATAL: Cannot get hugepage information.";
        assert!(advice(huge, &none).contains("--no-huge"));
        assert!(advice("tun: Operation not permitted", &none).contains("sudo"));
        assert!(advice("", &io::Error::from_raw_os_error(13)).contains("sudo"));
        assert!(advice("EAL: failed to parse device \"net_x\"", &none).contains("drivers"));
        assert_eq!(advice("something else", &none), "");
        assert!(no_port("").to_string().contains("dpdk-devbind.py"));
        assert!(
            no_port("tun: Permission denied").to_string().contains("found no port: run with sudo")
        );
    }

    #[test]
    fn a_log_is_cut_to_its_telling_lines() {
        let log = "EAL: Detected CPU lcores: 2\n\nEAL: one\n EAL: two\n";
        assert_eq!(tail(log), "\n  EAL: one\n  EAL: two");
        let many: String = (0..20).map(|n| format!("{n}\n")).collect();
        assert_eq!(tail(&many).lines().count(), LOG_LINES + 1);
    }
}
