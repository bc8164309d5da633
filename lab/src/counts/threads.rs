//! The kernel's counts about the threads of processes.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};

/// Context switches and page faults of processes so far.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// Context switches in which a thread slept.
    pub voluntary: u64,
    /// Context switches in which a thread was preempted.
    pub involuntary: u64,
    /// Page faults without disk access.
    pub faults: u64,
}

/// Process id of each thread.
pub type Threads = BTreeMap<u32, u32>;

pub fn threads(processes: &[u32]) -> Result<Threads> {
    let mut all = Threads::new();
    for &process in processes {
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let thread = thread?.file_name();
            all.insert(thread.to_str().context("a number")?.parse()?, process);
        }
    }
    Ok(all)
}

/// Returns the sums over all live threads.
pub fn scheduled(processes: &[u32]) -> Result<Scheduled> {
    let mut sum = Scheduled::default();
    for (thread, process) in threads(processes)? {
        let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status"))?;
        sum.voluntary += field(&status, "voluntary_ctxt_switches:")?;
        sum.involuntary += field(&status, "nonvoluntary_ctxt_switches:")?;
    }
    for process in processes {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
        // Fields after the name, which may contain any characters: state, five numbers, flags,
        // minflt.
        let (_, after) = stat.rsplit_once(") ").context("stat")?;
        sum.faults += after.split(' ').nth(7).context("minflt")?.parse::<u64>()?;
    }
    Ok(sum)
}

fn field(status: &str, name: &str) -> Result<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name)).context("status")?;
    Ok(value.trim().parse()?)
}

impl Scheduled {
    pub fn since(&self, before: &Self) -> Self {
        Self {
            voluntary: self.voluntary.saturating_sub(before.voluntary),
            involuntary: self.involuntary.saturating_sub(before.involuntary),
            faults: self.faults.saturating_sub(before.faults),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_our_own_is_counted() {
        let own = [std::process::id()];
        let before = scheduled(&own).expect("/proc");
        let pages = vec![1_u8; 4 << 20];
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(pages.iter().all(|&byte| byte == 1));
        let since = scheduled(&own).expect("/proc").since(&before);
        assert!(since.faults >= 1 && since.voluntary >= 1, "{since:?}");
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = "Name:\ta\nvoluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n";
        assert_eq!(field(status, "voluntary_ctxt_switches:").expect("it is there"), 3);
        assert_eq!(field(status, "nonvoluntary_ctxt_switches:").expect("it is there"), 4);
        assert!(field("Name:\ta\n", "voluntary_ctxt_switches:").is_err());
    }
}
