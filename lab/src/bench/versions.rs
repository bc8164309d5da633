//! Conditions of a measurement: the machine, and the versions of programs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::report::data::Machine;

/// Returns a description of this machine.
pub fn machine() -> Result<Machine> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo")?;
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    Ok(Machine {
        cpu: value(&cpus, "model name").unwrap_or("unknown").to_owned(),
        cores: std::thread::available_parallelism()?.get(),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        memory_bytes: kib(&memory).context("/proc/meminfo")? * 1024,
    })
}

/// Returns the versions of the measured programs.
pub fn programs(towpath: &Path) -> BTreeMap<String, String> {
    let towpath = towpath.display().to_string();
    let asked: [(&str, &str, &[&str]); 5] = [
        ("towpath", &towpath, &["--version"]),
        ("iperf3", "iperf3", &["--version"]),
        ("nginx", "nginx", &["-v"]),
        ("redis", "redis-server", &["--version"]),
        ("wrk", "wrk", &["-v"]),
    ];
    let said = |(name, program, words): (&str, &str, &[&str])| {
        Some((name.to_owned(), said(program, words)?))
    };
    asked.into_iter().filter_map(said).collect()
}

/// Returns today's date in UTC.
pub fn today() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%F"]).output().context("date")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Returns the version that a program prints, if the program exists.
pub fn said(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    version(&String::from_utf8_lossy(&text)).map(str::to_owned)
}

/// Returns the first word with a number such as 1.2, without surrounding characters.
fn version(text: &str) -> Option<&str> {
    let number = |word: &'_ str| {
        let begin = word.find(|c: char| c.is_ascii_digit())?;
        let number = &word[begin..];
        let end = number.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(number.len());
        let place = begin..begin + end;
        word[place.clone()].trim_end_matches('.').contains('.').then_some(place)
    };
    let mut words = text.split_whitespace();
    words.find_map(|word| number(word).map(|place| word[place].trim_end_matches('.')))
}

fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim())
}

fn kib(meminfo: &str) -> Option<u64> {
    value(meminfo, "MemTotal")?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (text, is) in [
            ("iperf 3.12 (cJSON 1.7.15)\nLinux 6", "3.12"),
            ("nginx version: nginx/1.22.1", "1.22.1"),
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64", "7.0.15"),
            ("wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer", "4.1.0"),
            ("go version go1.26.8 linux/amd64", "1.26.8"),
        ] {
            assert_eq!(version(text), Some(is), "{text}");
        }
        assert_eq!(version("no number, 7 of them"), None);
    }

    #[test]
    fn a_machine_says_what_it_is() {
        assert_eq!(value("a\t: b\nmodel name\t: X: Y\n", "model name"), Some("X: Y"));
        assert_eq!(kib("MemTotal:       123 kB\n"), Some(123));
        let machine = machine().unwrap();
        assert!(machine.cores > 0 && machine.memory_bytes > 0 && !machine.kernel.is_empty());
        assert_eq!(today().unwrap().len(), "2026-11-23".len());
    }
}
