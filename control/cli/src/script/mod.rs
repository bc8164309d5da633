//! Implements `towpath script`, which runs packet scripts in virtual time.

mod args;

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use towpath_pcap::{CaptureLinkType, Interface, Writer};
use towpath_script::{RunOptions, ScriptResult, find_scripts, run_files};

use crate::error::{ExitCode, Failure};
use crate::output;

pub use args::{ABOUT, AFTER, ScriptArgs};

/// Runs the packet scripts, and returns the exit status: 1 if any script failed.
pub fn script(args: &ScriptArgs) -> Result<u8> {
    let usage = |message: String| Failure::error(ExitCode::Usage, message);
    let mut files = find_scripts(&args.files).map_err(|error| usage(error.to_string()))?;
    if let Some(filter) = &args.filter {
        files.retain(|file| file.to_string_lossy().contains(filter.as_str()));
    }
    if files.is_empty() {
        return Err(usage("no script was found; scripts in a folder end in .pkt".to_owned()));
    }
    let options = RunOptions {
        version: args.ip_version,
        mtu: args.mtu,
        tolerance_us: args.tolerance,
        relax: args.relaxations(),
        strict: args.strict,
    };
    let results = run_files(&files, &options);
    if let Some(path) = &args.pcap {
        write_packets(path, &results).with_context(|| path.display().to_string())?;
    }
    if args.json {
        let results: Vec<_> = results.iter().map(ScriptResult::to_json).collect();
        output::write_json(&format!("{:#}\n", serde_json::Value::Array(results)))?;
    } else {
        output::write_text(&report(&results, args.quiet))?;
    }
    Ok(u8::from(results.iter().any(|result| result.failure.is_some())))
}

/// Returns one line for each script, and the history of packets for each failure.
fn report(results: &[ScriptResult], quiet: bool) -> String {
    let mut text = String::new();
    for result in results {
        let path = result.path.display();
        // Ignore errors: writing to a String cannot fail.
        let _ = match &result.failure {
            None if quiet => Ok(()),
            None => writeln!(text, "pass {path}"),
            Some(failure) => {
                // Omit the position if it is zero, as for a file that cannot be read.
                let position = [(failure.line > 0).then_some(failure.line), failure.column];
                let position: String =
                    position.iter().flatten().map(|at| format!(":{at}")).collect();
                for line in &failure.history {
                    let _ = writeln!(text, "       {line}");
                }
                writeln!(text, "FAIL {path}{position}: {}", failure.message)
            }
        };
    }
    let passed = results.iter().filter(|result| result.failure.is_none()).count();
    let _ = writeln!(text, "{passed} of {} scripts passed", results.len());
    text
}

fn write_packets(path: &Path, results: &[ScriptResult]) -> Result<()> {
    let names: Vec<String> = results.iter().map(|r| r.path.display().to_string()).collect();
    let interface = |name| Interface { name, link_type: CaptureLinkType::Raw };
    let interfaces: Vec<Interface<'_>> = names.iter().map(|name| interface(name)).collect();
    let mut writer = Writer::new(File::create(path)?, &interfaces)?;
    for (result, iface) in results.iter().zip(0..) {
        for packet in &result.packets {
            let len = packet.bytes.len() as u32;
            let bytes = [packet.bytes.as_slice()];
            writer.packet(iface, packet.at_ns, packet.direction, None, &bytes, len)?;
        }
    }
    writer.into_inner()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use towpath_script::ScriptFailure;

    use super::*;

    #[test]
    fn failures_have_a_position_if_the_script_is_readable() {
        let failed = |line, column| ScriptResult {
            path: "a.pkt".into(),
            failure: Some(ScriptFailure { line, column, message: "no".into(), history: vec![] }),
            packets: vec![],
        };
        let results = [failed(0, None), failed(3, None), failed(3, Some(7))];
        assert_eq!(
            report(&results, true),
            "FAIL a.pkt: no\nFAIL a.pkt:3: no\nFAIL a.pkt:3:7: no\n0 of 3 scripts passed\n"
        );
    }
}
