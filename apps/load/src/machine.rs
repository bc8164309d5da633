//! Resources used by the process and its network namespace.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Usage so far. The difference of two values is the usage of a period.
#[derive(Clone, Copy)]
pub struct MachineUsage {
    /// CPU time of all threads.
    pub cpu: Duration,
    /// Segments retransmitted in the network namespace.
    pub retransmits: Option<u64>,
}

pub fn usage() -> MachineUsage {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu = Duration::try_from(cpu).unwrap_or_default();
    let snmp = fs::read_to_string("/proc/self/net/snmp").ok();
    MachineUsage { cpu, retransmits: snmp.and_then(|text| retransmits(&text)) }
}

/// Returns the peak resident memory of this process in bytes; 0 if `/proc` cannot be read.
pub fn memory_max() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|it| it.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Parses RetransSegs from the two lines that begin with "Tcp:", a line of names and one of values.
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
