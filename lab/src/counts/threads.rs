//! Counts of the kernel about the threads of processes.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};

/// Events of processes so far.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// A thread slept, and was woken.
    pub voluntary: u64,
    /// A thread had to give up its processor.
    pub involuntary: u64,
    /// Page faults that needed no disk.
    pub faults: u64,
}

/// The process of each thread.
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

/// The sums over the threads that live.
pub fn scheduled(processes: &[u32]) -> Result<Scheduled> {
    let mut sum = Scheduled::default();
    for (thread, process) in threads(processes)? {
        let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status"))?;
        sum.voluntary += field(&status, "voluntary_ctxt_switches:")?;
        sum.involuntary += field(&status, "nonvoluntary_ctxt_switches:")?;
    }
    for process in processes {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
        // Behind the name, which may be anything: state, five numbers, flags, minflt.
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
