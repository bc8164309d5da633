//! Counts the memory shared by shards, from a trace of all their memory accesses by valgrind's
//! lackey. The model moves each cache line to the shard that uses it, as processors with coherent
//! caches do (MESI). Unlike the counters of a processor, which virtual machines usually lack, it
//! gives equal results in every run.
//!
//! Accesses between two marks (`core/stack/examples/shards`) belong to a shard, whose instructions
//! are counted as well.

use std::collections::HashMap;
use std::io::BufRead;

use anyhow::{Context, Result};

/// Length of a cache line in bytes, as a power of two.
const LINE: u32 = 6;
/// Number of words after the first mark: word 1 + 2 n starts shard n, and word 2 + 2 n ends it.
const MARKS: u64 = 64;

/// Counts after the first mark.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions of all shards.
    pub instructions: u64,
    /// Reads of lines that another shard has written.
    pub lines_read: u64,
    /// Writes to lines that another shard holds, because it has read them or written them last.
    pub lines_written: u64,
}

/// Shards that hold a cache line.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    /// Bit mask of the shards.
    holders: u32,
    /// Whether the single holder has written the line.
    is_changed: bool,
}

/// All cache lines, and the current shard.
#[derive(Default)]
struct Caches {
    lines: HashMap<u64, Line>,
    shard: Option<u32>,
    is_counted: bool,
    counts: Counts,
}

/// Reads a trace. `marks` returns the address of the marks once it is known.
///
/// # Errors
/// When it cannot be read, or ends before the counting begins.
pub fn read(mut trace: impl BufRead, marks: impl Fn() -> Option<u64>) -> Result<Counts> {
    let (mut caches, mut line) = (Caches::default(), Vec::new());
    let mut known = None;
    loop {
        line.clear();
        if trace.read_until(b'\n', &mut line).context("the trace")? == 0 {
            break;
        }
        known = known.or_else(&marks);
        if let (Some(marks), Some(access)) = (known, Access::parse(&line)) {
            caches.note(access, marks);
        }
    }
    caches.is_counted.then_some(caches.counts).context("the program ended before it was measured")
}

/// Access in a line of a trace.
#[derive(Debug, PartialEq, Eq)]
enum Access {
    Instruction,
    Read {
        at: u64,
        len: u64,
    },
    /// A write, or a read followed by a write.
    Write {
        at: u64,
        len: u64,
    },
}

impl Access {
    /// Parses lines such as "I  04001000,3", " L 1ffefff9a8,8", " S …" or " M …". Other lines are
    /// messages of valgrind.
    fn parse(line: &[u8]) -> Option<Self> {
        if line.starts_with(b"I  ") {
            return Some(Self::Instruction);
        }
        let (kind, rest) = line.split_at_checked(3)?;
        let is_write = match kind {
            b" L " => false,
            b" S " | b" M " => true,
            _ => return None,
        };
        let (at, len) = std::str::from_utf8(rest).ok()?.trim_end().split_once(',')?;
        let (at, len) = (u64::from_str_radix(at, 16).ok()?, len.parse().ok()?);
        Some(if is_write { Self::Write { at, len } } else { Self::Read { at, len } })
    }
}

impl Caches {
    fn note(&mut self, access: Access, marks: u64) {
        match access {
            Access::Write { at, .. } if (marks..marks + 4 * MARKS).contains(&at) => {
                self.on_mark((at - marks) / 4);
            }
            Access::Instruction => {
                let counts = self.shard.is_some() && self.is_counted;
                self.counts.instructions += u64::from(counts);
            }
            Access::Read { at, len } => self.touch(at, len, false),
            Access::Write { at, len } => self.touch(at, len, true),
        }
    }

    fn on_mark(&mut self, word: u64) {
        self.is_counted |= word == 0;
        self.shard = (word % 2 == 1).then_some((word / 2) as u32);
    }

    fn touch(&mut self, at: u64, len: u64, is_write: bool) {
        let Some(shard) = self.shard else { return };
        let own = 1 << shard;
        for n in at >> LINE..=(at + len.max(1) - 1) >> LINE {
            let line = self.lines.entry(n).or_default();
            let others = line.holders & !own != 0;
            let (read, written) = match is_write {
                false => (others && line.is_changed, false),
                true => (false, others),
            };
            *line = match (is_write, line.holders & own != 0) {
                (true, _) => Line { holders: own, is_changed: true },
                (false, true) => *line,
                (false, false) => Line { holders: line.holders | own, is_changed: false },
            };
            if self.is_counted {
                self.counts.lines_read += u64::from(read);
                self.counts.lines_written += u64::from(written);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts a script of accesses with marks at 0x1000: `0` begins the count, `+n` and `-n` start
    /// and end shard n.
    fn counts(script: &str) -> Counts {
        let lines = script.split_whitespace().map(|word| {
            let mark = |n: &str, behind: u64| {
                let n: u64 = n.parse().expect("a shard");
                format!(" M {:x},4\n", 0x1000 + 4 * (2 * n + behind))
            };
            match word.split_at(1) {
                ("0", "") => " M 1000,4\n".to_owned(),
                ("+", n) => mark(n, 1),
                ("-", n) => mark(n, 2),
                ("I", "") => "I  04001000,3\n".to_owned(),
                (kind, at) => format!(" {kind} {at},8\n"),
            }
        });
        let text = lines.collect::<String>() + "==1== valgrind says something\n";
        read(text.as_bytes(), || Some(0x1000)).expect("counted")
    }

    #[test]
    fn a_line_that_goes_to_and_fro_counts_each_time() {
        let counted = counts("+0 S40 -0 0 +1 L40 I I L48 -1 +0 L40 S40 -0 +1 S78 I -1 +1 L40 -1");
        assert_eq!(counted, Counts { instructions: 3, lines_read: 1, lines_written: 2 });
    }

    #[test]
    fn lines_of_one_shard_and_those_that_all_read_are_nobodys() {
        let own = counts("0 +0 S40 L40 M40 -0 +1 S80 L80 -1 +0 L40 S7f -0");
        // The last access extends from the shard's own line into the line of shard 1.
        assert_eq!(own, Counts { instructions: 0, lines_read: 0, lines_written: 1 });
        assert_eq!(counts("0 +0 L40 -0 +1 L40 -1 +0 L40 -0"), Counts::default());
        assert_eq!(counts("+0 S40 -0 S40 +1 L40 -1 0 +0 I L40 -0 I").instructions, 1);
    }

    #[test]
    fn a_trace_without_a_count_is_an_error() {
        assert!(read(&b" S 40,8\n"[..], || Some(0x1000)).is_err());
    }
}
