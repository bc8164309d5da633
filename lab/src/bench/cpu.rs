//! CPU time used so far, in seconds. The kernel counts hundredths of a second.

use anyhow::{Context, Result};

use crate::figures::Parts;

/// Kernel ticks per second: USER_HZ, the same on all architectures of Linux.
const TICKS: f64 = 100.;

/// Returns the CPU time of this machine, summed over all processors.
pub fn busy() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let fields: Vec<f64> = text
        .lines()
        .next()
        .context("/proc/stat")?
        .split_whitespace()
        .skip(1)
        .filter_map(|f| f.parse().ok())
        .collect();
    let idle = fields.get(3).copied().unwrap_or(0.) + fields.get(4).copied().unwrap_or(0.);
    Ok((fields.iter().take(8).sum::<f64>() - idle) / TICKS)
}

/// Returns the CPU time of a process.
pub fn of(pid: u32) -> Result<f64> {
    Ok(Times::of(pid)?.own)
}

/// Returns the CPU time of a process's ended children for which it has waited, including their own
/// ended children.
pub fn of_ended_children(pid: u32) -> Result<f64> {
    Ok(Times::of(pid)?.children)
}

/// Returns the CPU time of a process and all of its descendants.
pub fn of_tree(pid: u32) -> Result<f64> {
    let own = Times::of(pid)?;
    Ok(own.own + own.children + of_descendants(pid)?)
}

/// Returns the CPU time of a process's live descendants, and of their ended children.
pub fn of_descendants(pid: u32) -> Result<f64> {
    // Skip a process that ended after it was listed, because its time is added to its parent's.
    let times = descendants(pid)?.into_iter().filter_map(|pid| Times::of(pid).ok());
    Ok(times.map(|it| it.own + it.children).sum())
}

struct Times {
    own: f64,
    children: f64,
}

impl Times {
    fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        Self::parse(&text).with_context(|| path)
    }

    /// Parses the line of proc_pid_stat(5).
    fn parse(text: &str) -> Option<Self> {
        // The name may contain spaces and parentheses.
        let after = text.rsplit_once(") ")?.1;
        let mut fields = after.split(' ').skip(11).map(|field| field.parse::<f64>().ok());
        let mut two = || Some((fields.next()?? + fields.next()??) / TICKS);
        Some(Self { own: two()?, children: two()? })
    }
}

/// Returns the live descendants of a process.
pub fn descendants(pid: u32) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    let mut left = vec![pid];
    while let Some(parent) = left.pop() {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{parent}/task")) else { continue };
        for thread in threads {
            let children = std::fs::read_to_string(thread?.path().join("children"));
            let children = children.unwrap_or_default();
            left.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        if parent != pid {
            all.push(parent);
        }
    }
    Ok(all)
}

/// Returns the number of busy processors between two times.
pub fn between(before: Parts, after: Parts, seconds: f64) -> Parts {
    Parts {
        client: (after.client - before.client) / seconds,
        program: (after.program - before.program) / seconds,
        engine: (after.engine - before.engine) / seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_process_are_found_behind_any_name() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 1 0";
        let times = Times::parse(line).unwrap();
        assert_eq!((times.own, times.children), (2., 0.5));
        assert!(Times::parse("7 (a) S 1 7").is_none());
    }

    #[test]
    fn a_tree_has_what_its_children_have_used() {
        let me = std::process::id();
        let before = of_ended_children(me).unwrap();
        let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let mut child = std::process::Command::new("sh").args(["-c", busy]).spawn().unwrap();
        assert!(descendants(me).unwrap().contains(&child.id()));
        assert!(child.wait().unwrap().success());
        assert!(of_ended_children(me).unwrap() > before);
    }
}
