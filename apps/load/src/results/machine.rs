//! Description of the machine on which the tester runs. Readers need it to judge the figures.

use serde::Serialize;

/// Properties of a machine that influence the figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MachineFacts {
    /// Model of the CPU.
    pub cpu: String,
    /// Number of CPUs available to this process.
    pub cpus: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// Total memory of the machine in bytes.
    pub memory_bytes: u64,
}

impl MachineFacts {
    /// Reads the properties of this machine. If a file cannot be read, its property stays unknown.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown").to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: if kernel.is_empty() { "unknown".to_owned() } else { kernel },
            memory_bytes: memory(&read("/proc/meminfo")),
        }
    }
}

/// Returns the value of the first line of the form `name : value`. `None` if there is no such line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

fn memory(meminfo: &str) -> u64 {
    let kib = field(meminfo, "MemTotal").and_then(|value| value.split(' ').next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).map_or(0, |kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_proc() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A: fast one\nmodel name\t: other\n";
        assert_eq!(field(cpuinfo, "model name"), Some("A: fast one"));
        assert_eq!(memory("MemTotal:       24576 kB\nMemFree: 1 kB\n"), 24576 * 1024);
        assert_eq!(memory("nonsense"), 0);
    }
}
