//! Runs the scripts of the folder `scripts`, and the combinations of states and events.

mod states;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use towpath_script::{RunOptions, ScriptResult, find_scripts, run_files, run_text};

const KNOWN: &str = include_str!("../scripts/known-failures.txt");

fn options() -> RunOptions {
    RunOptions { strict: true, ..RunOptions::default() }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

/// Returns the known failures with their reasons.
fn known() -> BTreeMap<&'static str, &'static str> {
    let rows = KNOWN.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|line| line.split_once(' ').expect("a name and a reason")).collect()
}

fn results() -> Vec<(String, ScriptResult)> {
    let files = find_scripts(&[folder()]).expect("the folder exists");
    let from_files = run_files(&files, &options()).into_iter().map(|result| {
        let name = result.path.strip_prefix(folder()).expect("it is in the folder");
        (name.with_extension("").display().to_string(), result)
    });
    let from_table = states::all().into_iter().map(|script| {
        let result = run_text(Path::new(&script.name), &script.text, &options());
        (script.name, result)
    });
    from_files.chain(from_table).collect()
}

#[test]
fn scripts_pass() {
    let known = known();
    let results = results();
    assert!(results.len() >= 300, "{} scripts", results.len());
    let mut faults = Vec::new();
    for (name, result) in &results {
        match (&result.failure, known.get(name.as_str())) {
            (Some(failure), None) => faults.push(format!(
                "{name}:{}: {}\n{}",
                failure.line,
                failure.message,
                failure.history.join("\n")
            )),
            (None, Some(_)) => faults
                .push(format!("{name} passes: remove its line from scripts/known-failures.txt")),
            _ => {}
        }
    }
    let missing = known.keys().filter(|name| !results.iter().any(|(script, _)| script == *name));
    faults.extend(missing.map(|name| format!("known failure {name} is not a script")));
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n\n"));
}

#[test]
fn equal_scripts_give_equal_packets() {
    for script in states::all().iter().take(20) {
        let run = || run_text(Path::new("script"), &script.text, &options()).packets;
        let bytes = |packets: Vec<towpath_script::CapturedPacket>| {
            packets.into_iter().map(|packet| (packet.at_ns, packet.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(bytes(run()), bytes(run()), "{}", script.name);
    }
}

/// Returns the failure of a script.
fn failure_of(text: &str) -> (usize, Option<usize>, String) {
    let result = run_text(Path::new("script"), text, &RunOptions::default());
    let failure = result.failure.expect("it fails");
    (failure.line, failure.column, failure.message)
}

#[test]
fn unknown_words_are_refused_with_their_position() {
    let of = |text| {
        let (line, column, message) = failure_of(text);
        (line, column.expect("a syntax error"), message)
    };
    assert_eq!(of("+0 socket(..., SOCK_STREEM, 0) = 3").1, 16);
    assert_eq!(of("+0 < S 0:0(0) win 1 <mss 1, magic 2>").2, "unknown TCP option magic");
    assert_eq!(of("\n\n+0 < X 0:0(0)").0, 3);
    assert!(of("+0 < . 1:10(1) ack 1").2.contains("does not have the length 1"));
    assert!(of("--colour=red\n").2.contains("unknown option --colour"));
    assert!(of("/* no end").2.contains("does not end"));
    assert!(of("/*/ no end").2.contains("does not end"));
    assert_eq!(of("é\n\n0").2, "expected a time, found é");
    assert!(of("9223372036854.999999 socket(1) = 2").2.contains("expected a time"));
    assert!(of("+x socket(1) = 2").2.contains("expected a time"));
}

#[test]
fn unsupported_calls_and_settings_are_refused_by_name() {
    assert!(failure_of("`sysctl -q net.ipv4.tcp_wizard=1`").2.contains("tcp_wizard"));
    assert!(failure_of("`rm -r x`").2.contains("command 'rm' is not supported"));
    let open = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n";
    assert!(failure_of(&format!("{open}+0 mmap(3) = 0")).2.contains("mmap"));
    assert!(failure_of(&format!("{open}+0 fcntl(3, 77) = 0")).2.contains("77"));
    assert!(failure_of("`sysctl -q net.ipv4.tcp_syn_retries=300`").2.contains("at most 255"));
    assert!(failure_of("0 < . 0:65496(65496) ack 1").2.contains("do not fit an IP packet"));
}

#[test]
fn mismatches_are_reported() {
    let open = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n\
                +0 fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0\n";
    let connect = format!("{open}+0 connect(3, ..., ...) = -1 EINPROGRESS\n");
    assert!(
        failure_of(&format!("{connect}+0 > S 0:0(0) <mss 1461>")).2.contains("options differs")
    );
    assert!(
        failure_of(&format!("{connect}+0 > S. 0:0(0) ack 1 <...>")).2.contains("flags differs")
    );
    for flags in ["FF".to_owned(), "7".repeat(200)] {
        let text = format!("{connect}+0 > {flags} 0:0(0) <...>");
        assert!(failure_of(&text).2.contains("flags differs"), "{flags}");
    }
    assert!(failure_of(&format!("{connect}+2 > S 0:0(0) <...>")).2.contains("was sent at 0.0"));
    let late = format!("{connect}+0 > S 0:0(0) <...>\n+.1 > S 0:0(0) <...>");
    assert!(failure_of(&late).2.contains("no packet was sent by 0.104"));
    assert!(failure_of(&format!("{open}+0 connect(3, ..., ...) = 0\n")).2.contains("EINPROGRESS"));
    assert!(failure_of("0 %{ assert 2 + 3 * 2 == 7 }%").2.contains("assert 2 + 3 * 2 == 7"));
    assert!(failure_of("0 %{ assert 1 < 2 < 2 }%").0 == 1);
}

#[test]
fn strict_runs_refuse_packets_that_no_line_expects() {
    let text = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n\
                +0 fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0\n\
                +0 connect(3, ..., ...) = -1 EINPROGRESS\n";
    let run = |options: &RunOptions| run_text(Path::new("script"), text, options).failure;
    assert_eq!(run(&RunOptions::default()), None);
    assert!(run(&options()).is_some_and(|failure| failure.message.contains("no event expects")));
}

#[test]
fn history_has_the_numbers_of_the_script_from_the_first_syn_on() {
    let text = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n\
                +0 fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0\n\
                +0 connect(3, ..., ...) = -1 EINPROGRESS\n\
                +0 > S 0:0(0) <...>\n\
                +0 %{ assert False }%\n";
    let failure = run_text(Path::new("script"), text, &RunOptions::default()).failure;
    let failure = failure.expect("it fails");
    assert!(failure.history[3].starts_with("0.000000 > S 0:0(0) win"), "{:?}", failure.history);
    assert_eq!(failure.message, "assert False is false");
}
