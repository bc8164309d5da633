//! Memory of an idle connection.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use towpath_tests::{program, towpath};

/// Numbers of connections to compare.
const COUNTS: [u32; 2] = [500, 3000];
/// Maximum memory of one end of a connection in bytes; 979 to 988 were measured.
/// `core/stack/src/socket.rs` lists the parts.
const BYTES_MAX: f64 = 1008.0;
/// Part of it that is shared with the program, the slot, in bytes.
const BYTES_SHARED: f64 = 256.0;

/// Time until the engine has reclaimed FIFO memory: ten seconds after the last byte, checked once
/// per second.
const SETTLED: Duration = Duration::from_secs(13);

/// Returns the private memory of a process in bytes.
fn anonymous(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps_rollup");
    let line = text.lines().find(|line| line.starts_with("Anonymous:")).expect("the field");
    let kib = line.split_whitespace().nth(1).and_then(|word| word.parse::<f64>().ok());
    kib.expect("a number") * 1024.0
}

/// The limit depends on the allocator and page state of the machine on which it was measured.
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
