//! Errors of opening a port.

use std::io;

/// Error of opening a DPDK port, with a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The EAL arguments have an unterminated quote.
    #[error("{text:?} has a quote without its end")]
    Quotes {
        /// Given arguments.
        text: String,
    },
    /// An argument would end this process, or share its memory with another process.
    #[error("{word} is not an argument for a stack: {why}")]
    Refused {
        /// Rejected argument.
        word: String,
        /// Reason for the rejection.
        why: &'static str,
    },
    /// EAL can be initialized only once per process.
    #[error("DPDK has been started in this process before: it starts once")]
    Twice,
    /// EAL could not be initialized.
    #[error("DPDK does not start ({source}){advice}{log}")]
    Eal {
        /// Remedy, with a leading colon.
        advice: &'static str,
        /// Last lines of EAL's log.
        log: String,
        /// Cause of the failure.
        source: io::Error,
    },
    /// EAL found no port.
    #[error("DPDK found no port{advice}{log}")]
    NoPort {
        /// Remedy, with a leading colon.
        advice: &'static str,
        /// Last lines of EAL's log.
        log: String,
    },
    /// EAL found several ports.
    #[error(
        "DPDK found {count} ports, and a stack has one: name it by --allow=PCI-ADDRESS, or leave \
         out cards by --no-pci"
    )]
    SeveralPorts {
        /// Number of ports.
        count: usize,
    },
    /// The port has too few queues.
    #[error("{name} has {has} queues, and {wanted} shards need one each{advice}")]
    Queues {
        /// Name of the port.
        name: String,
        /// Maximum number of queues of the port.
        has: usize,
        /// Required number of queues, one per shard.
        wanted: usize,
        /// Remedy.
        advice: &'static str,
    },
    /// The device would deliver frames to queues without a shard.
    #[error(
        "{name} divides frames among {has} queues, and there are {wanted} shards: give as many \
         --shards, or qpairs={wanted}"
    )]
    Spare {
        /// Name of the port.
        name: String,
        /// Number of its queues.
        has: usize,
        /// Required number of queues.
        wanted: usize,
    },
    /// The MTU exceeds that of the kernel interface.
    #[error(
        "{interface} takes packets of at most {most} bytes: `ip link set {interface} mtu {mtu}`"
    )]
    Mtu {
        /// Name of the kernel interface.
        interface: String,
        /// Requested MTU.
        mtu: u32,
        /// Maximum MTU.
        most: u32,
    },
    /// A step failed.
    #[error("cannot {step} of {name} ({source}){advice}{log}")]
    Step {
        /// Name of the port.
        name: String,
        /// Failed step.
        step: String,
        /// Cause of the failure.
        source: io::Error,
        /// Remedy, with a leading colon.
        advice: &'static str,
        /// Last lines of EAL's log.
        log: String,
    },
}

/// Creates the error for a missing port.
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

/// Maximum number of log lines in an error.
const LOG_LINES: usize = 6;

/// Returns a remedy according to the log and the errno, or an empty string.
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

/// Returns the last relevant lines of a log, for appending to a message.
pub(crate) fn tail(log: &str) -> String {
    let is_telling = |line: &&str| {
        let line = line.trim();
        // Skip lines that EAL always logs.
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
