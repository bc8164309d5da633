//! `towpath sim` as a user meets it.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A folder that goes with the test.
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
    assert!(read(&csv).starts_with("variant,seed,time_s,kind,object,figure,value\n"));

    let output = sim(&[&scenario, "-q", "-o", "-"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    assert_eq!(json["runs"][0]["flows"][0]["bytes"], 100_000);
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
    assert!(text(&output.stderr).contains("r.png: the name says no format"));
    assert_eq!(sim(&["nothere.toml"]).status.code(), Some(125));
}
