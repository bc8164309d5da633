//! Errors of opening a port.

use std::io;

/// Why a port of DPDK could not be opened, and what helps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The arguments of EAL are not words of a shell.
    #[error("{text:?} has a quote without its end")]
    Quotes {
        /// The arguments.
        text: String,
    },
    /// An argument that would end this process, or share its memory with another.
    #[error("{word} is not an argument for a stack: {why}")]
    Refused {
        /// The argument.
        word: String,
        /// The reason.
        why: &'static str,
    },
    /// EAL starts once in a process.
    #[error("DPDK has been started in this process before: it starts once")]
    Twice,
    /// EAL does not start.
    #[error("DPDK does not start ({source}){advice}{log}")]
    Eal {
        /// Advice, with a colon in front.
        advice: &'static str,
        /// The newest lines of EAL's log.
        log: String,
        /// The error.
        source: io::Error,
    },
    /// EAL found no port.
    #[error("DPDK found no port{advice}{log}")]
    NoPort {
        /// Advice, with a colon in front.
        advice: &'static str,
        /// The newest lines of EAL's log.
        log: String,
    },
    /// EAL found several ports.
    #[error(
        "DPDK found {count} ports, and a stack has one: name it by --allow=PCI-ADDRESS, or leave \
         out cards by --no-pci"
    )]
    SeveralPorts {
        /// Their number.
        count: usize,
    },
    /// The port has too few queues.
    #[error("{name} has {has} queues, and {wanted} shards need one each{advice}")]
    Queues {
        /// The port.
        name: String,
        /// Queues that it can have.
        has: usize,
        /// Queues that are needed.
        wanted: usize,
        /// Advice.
        advice: &'static str,
    },
    /// Frames would come to queues that no shard has.
    #[error(
        "{name} divides frames among {has} queues, and there are {wanted} shards: give as many \
         --shards, or qpairs={wanted}"
    )]
    Spare {
        /// The port.
        name: String,
        /// Queues that it has.
        has: usize,
        /// Queues that are needed.
        wanted: usize,
    },
    /// The interface below carries shorter packets.
    #[error(
        "{interface} takes packets of at most {most} bytes: `ip link set {interface} mtu {mtu}`"
    )]
    Mtu {
        /// The interface of the kernel.
        interface: String,
        /// The length that was asked for.
        mtu: u32,
        /// The longest.
        most: u32,
    },
    /// A step failed.
    #[error("cannot {step} of {name} ({source}){advice}{log}")]
    Step {
        /// The port.
        name: String,
        /// The step.
        step: String,
        /// The error.
        source: io::Error,
        /// Advice, with a colon in front.
        advice: &'static str,
        /// The newest lines of EAL's log.
        log: String,
    },
}

/// The error where there is no port.
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

/// Lines of a log in an error.
const LOG_LINES: usize = 6;

/// Advice, as far as the log and the errno tell.
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

/// The newest lines of a log, for the end of a message.
pub(crate) fn tail(log: &str) -> String {
    let is_telling = |line: &&str| {
        let line = line.trim();
        // EAL says these each time.
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
