//! `towpath sim` as a user sees it.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A directory that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("towpath-sim-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("text").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn sim(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.arg("sim").args(words).stdin(Stdio::null()).output().expect("towpath starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

const PAIR: &str = r#"
title = "A pair"
duration = "2s"
topology = { kind = "pair", rate = "10mbit", delay = "5ms" }
flow = [{ kind = "bulk", from = "a", to = "b", bytes = "100kB" }]
"#;

#[test]
fn results_go_to_the_terminal_and_into_files() {
    let folder = Folder::new("files");
    let scenario = folder.file("pair.toml", PAIR);
    let [page, csv] = ["r.html", "r.csv"].map(|name| folder.file(name, ""));
    let output = sim(&[&scenario, "-o", &page, "-o", &csv, "--seed", "7"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.starts_with("A pair\n") && table.contains("seed 7"), "{table}");
    assert!(text(&output.stderr).contains("simulated seconds a second"));
    let read = |path: &str| std::fs::read_to_string(path).expect("a file");
    assert!(read(&page).starts_with("<!doctype html>"));
    let rows = read(&csv);
    let (head, row) = rows.split_once('\n').expect("a head and a row");
    assert!(
        head.starts_with("variant,seed,events,goodput_bps,bulk1 start_s,bulk1 bytes,"),
        "{head}"
    );
    assert!(row.starts_with(",7,") && row.contains(",0,100000,"), "{row}");
    let series = format!("series={csv}");
    let output = sim(&[&scenario, "-q", "-o", &series, "-o", "text"]);
    assert_eq!(text(&output.stdout), table.replace("seed 7", "seed 1"));
    assert!(read(&csv).starts_with("variant,seed,time_s,kind,object,figure,value\n"));

    let output = sim(&[&scenario, "-q", "-o", "-"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    assert_eq!(json["runs"][0]["flows"][0]["bytes"], 100_000);
    assert_eq!((json["version"].as_str(), json["seed"].as_u64()), (Some(VERSION), Some(1)));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn mistakes_are_told_with_the_line_and_end_with_2() {
    let folder = Folder::new("mistakes");
    let scenario = folder.file("bad.toml", &PAIR.replace("delay", "dely"));
    let output = sim(&[&scenario]);
    assert_eq!(output.status.code(), Some(2));
    let wanted = "bad.toml: line 4: unknown key `dely`; did you mean `delay`?";
    assert!(text(&output.stderr).contains(wanted), "{}", text(&output.stderr));

    let good = folder.file("good.toml", PAIR);
    let output = sim(&[&good, "-o", "r.png"]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("'r.png'") && error.contains("the name says no format"), "{error}");
    assert_eq!(sim(&["nothere.toml"]).status.code(), Some(2));

    // The error is reported before the run, which would take minutes.
    let long =
        folder.file("long.toml", &PAIR.replace("2s", "24h").replace(", bytes = \"100kB\"", ""));
    let file = folder.0.join("nothere/r.html");
    let output = sim(&[&long, "-o", file.to_str().expect("text")]);
    assert!(!output.status.success());
    let error = text(&output.stderr);
    assert!(error.contains("nothere/r.html: No such file or directory"), "{error}");
    let output = sim(&[&good, "-o", "json", "-o", "csv"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("two formats for standard output"));
}

#[test]
fn examples_run_without_a_file_and_give_the_same_bytes_again() {
    let folder = Folder::new("examples");
    let [page, csv, txt] = ["r.html", "r.csv", "r.txt"].map(|name| folder.file(name, ""));
    let words = ["tc", "--duration", "4s", "--load", "1s-3s", "-q"];
    let output = sim(&[&words[..], &["-o", &page, "-o", &csv, "-o", &txt]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    let lines = text(&output.stdout);
    for wanted in ["bql off", "bql on", "icmp_seq=3 time=", "b in flight", "Under load the median"]
    {
        assert!(lines.contains(wanted), "{wanted}: {lines}");
    }
    let read = |path: &str| std::fs::read_to_string(path).expect("a file");
    assert_eq!(read(&txt), lines);
    assert!(read(&page).contains("Bytes in the device"));
    assert!(read(&csv).contains("\nbql on,true,1,"), "{}", read(&csv));
    assert!(text(&sim(&[&words[..], &["-o", "series"]].concat()).stdout).contains(",ping,seq 1,"));
    let json = |words: &[&str]| sim(&[words, &["-o", "-"]].concat()).stdout;
    let first = json(&words);
    assert!(first == json(&words), "the same seed gives the same bytes");
    let json: serde_json::Value = serde_json::from_slice(&first).expect("JSON alone");
    assert_eq!(json["example"], "tc");
    assert!(json["latency"][1]["under_load"]["p50_s"].as_f64().expect("a time") < 0.01);
}

#[test]
fn the_scenario_of_an_example_is_a_file_to_run() {
    let folder = Folder::new("printed");
    let words = ["--duration", "3s", "--load", "1s-2s"];
    let printed = sim(&[&["ping", "--scenario"], &words[..]].concat());
    let printed = text(&printed.stdout);
    assert!(printed.contains("duration = \"3s\"") && printed.contains("\"120mbit\""), "{printed}");
    let scenario = folder.file("ping.toml", &printed);
    let output = sim(&[&scenario, "-q"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("bql on, seed 1: 3.00 s in virtual time"));
    let output = sim(&["send", "--scenario"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("has no network"), "{}", text(&output.stderr));
}

#[test]
fn wrong_options_of_examples_end_with_2() {
    for (words, wanted) in [
        (&["tc", "--qdisc", "fq_codl"][..], "did you mean `fq_codel`?"),
        (&["tc", "--load", "1s-99s"], "expected a time in the run of 30.0 s"),
        (&["onoff", "--bql=perhaps"], "possible values: off, on, both"),
        (&["tc", "-o", "r.png"], "end it with .html, .svg, .json, .csv or .txt"),
        (&[], "<SCENARIO>"),
    ] {
        let output = sim(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(wanted), "{words:?}: {}", text(&output.stderr));
    }
}
