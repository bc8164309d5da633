//! Counts the instructions of a shard's turns by callgrind, which gives the same number as a memory
//! trace, but is faster.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{PACKETS, WORK, build, fields};

/// Function whose instructions are counted, including its callees.
const TURN: &str = "shards::shard::Shard::turn";
/// Numbers of turns in two runs. Their difference excludes handshakes and warm-up, which both runs
/// have.
const TURNS: [u32; 2] = [8, 40];

/// Returns the instructions per packet of a host with one shard, by kind of work. Needs valgrind.
pub fn instructions(root: &Path) -> Result<Vec<(&'static str, f64)>> {
    let example = build(root)?;
    let each = |work: &'static str| -> Result<(&'static str, f64)> {
        let [short, long] = TURNS.map(|turns| collected(&example, work, turns));
        let (short, long) = (short?, long?);
        let packets = long.1 - short.1;
        ensure!(packets > 0., "{work}: no packets in {TURNS:?} turns");
        Ok((work, (long.0 - short.0) / packets))
    };
    WORK.iter().map(|work| each(work.name)).collect()
}

/// Returns the instructions of a whole run, and the packets of its last turns.
fn collected(example: &Path, work: &str, turns: u32) -> Result<(f64, f64)> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-fd=1"]);
    command.arg(format!("--toggle-collect={TURN}")).arg(example);
    command.args(["trace", "1", work, &turns.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("valgrind")?;
    // Let the program begin. Its marks are not needed here.
    writeln!(child.stdin.take().context("piped")?)?;
    let output = child.wait_with_output()?;
    let (log, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{work}: {}\n{log}{said}", output.status);
    let instructions = of_log(&log).with_context(|| format!("valgrind says: {log}"))?;
    ensure!(instructions > 0., "{work}: there is no function {TURN}");
    Ok((instructions, fields(&said)?[PACKETS]))
}

/// Parses a line such as "==12== Collected : 31935502".
fn of_log(log: &str) -> Option<f64> {
    log.lines().find_map(|line| line.split_once("Collected :"))?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_found_in_the_log() {
        assert_eq!(of_log("==1== Events    : Ir\n==1== Collected : 31\n==1== \n"), Some(31.));
        assert_eq!(of_log("==1== Events    : Ir\n"), None);
    }
}
