//! Memory of an idle connection.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use towpath_tests::{program, towpath};

/// Connections: few, and more.
const COUNTS: [u32; 2] = [500, 3000];
/// All memory of one end of a connection; 979 to 988 measured. `core/stack/src/socket.rs` says what
/// it is.
const BYTES_MAX: f64 = 1008.0;
/// The part of it that is shared with the program: its slot.
const BYTES_SHARED: f64 = 256.0;

/// The engine takes FIFO memory back ten seconds after the last byte, in looks a second apart.
const SETTLED: Duration = Duration::from_secs(13);

/// Private memory of a process in bytes.
fn anonymous(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps_rollup");
    let line = text.lines().find(|line| line.starts_with("Anonymous:")).expect("the field");
    let kib = line.split_whitespace().nth(1).and_then(|word| word.parse::<f64>().ok());
    kib.expect("a number") * 1024.0
}

/// At most a KiB, by an allocator and pages that are as they were when this was measured.
mod nightly {
    use super::*;

    #[test]
    fn idle_connections_cost_little_and_stay_alive() {
        let mut child = Command::new(towpath())
            .args(["run", "-q", "--", "python3", &program("idle_connections.py")])
            .args(COUNTS.map(|count| count.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("towpath");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut next_line = || lines.next().expect("a line").expect("text");
        let mut stdin = child.stdin.take().expect("piped");
        let used = COUNTS.map(|count| {
            assert_eq!(next_line(), format!("{count} ready"));
            std::thread::sleep(SETTLED);
            let used = anonymous(child.id());
            stdin.write_all(b"go on\n").expect("it reads");
            used
        });
        assert_eq!(next_line(), "all alive");
        assert!(child.wait().expect("towpath").success());
        let private = (used[1] - used[0]) / f64::from(2 * (COUNTS[1] - COUNTS[0]));
        let all = private + BYTES_SHARED;
        println!("{all:.0} bytes each end, {private:.0} of them the engine's own");
        assert!(all <= BYTES_MAX, "{all:.0} bytes each end");
    }
}
