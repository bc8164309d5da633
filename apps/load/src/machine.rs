//! Resources that the process and its network namespace use.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Resources used so far. The difference between two values is the usage in the period between
/// them.
#[derive(Clone, Copy)]
pub struct MachineUsage {
    /// CPU time that all threads of the process have used.
    pub cpu: Duration,
    /// Number of segments that were retransmitted in the network namespace. `None` if it is
    /// unknown.
    pub retransmits: Option<u64>,
}

pub fn usage() -> MachineUsage {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu = Duration::try_from(cpu).unwrap_or_default();
    let snmp = fs::read_to_string("/proc/self/net/snmp").ok();
    MachineUsage { cpu, retransmits: snmp.and_then(|text| retransmits(&text)) }
}

/// Returns the maximum resident memory of this process in bytes, or 0 if `/proc` cannot be read.
pub fn memory_max() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|it| it.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Parses the value of RetransSegs. The text has two lines that start with "Tcp:". The first one
/// contains names, and the second one their values.
fn retransmits(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let at = lines.next()?.split_whitespace().position(|it| it == "RetransSegs")?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retransmits_are_found_by_their_name() {
        let snmp =
            "Ip: Forwarding\nIp: 1\nTcp: MaxConn OutSegs RetransSegs\nTcp: -1 20 7\nUdp: x\n";
        assert_eq!(retransmits(snmp), Some(7));
        assert_eq!(retransmits("Tcp: MaxConn\nTcp: -1\n"), None);
        assert_eq!(retransmits(""), None);
    }

    #[test]
    fn this_process_has_memory_and_cpu_time() {
        assert!(memory_max() > 100_000);
        assert!(usage().cpu > Duration::ZERO);
    }
}
