//! Runs the programs and commands of `docs/guide` as written, in a network namespace of its own.
//!
//! The programs run as this package builds them, so `--release` in a command has no effect here.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

/// Programs that stand in for those of the same name. Debian has several kinds of `nc`; that of
/// busybox ends the bytes to the server at the end of its input.
const STAND_INS: [(&str, &str); 2] = [
    (
        "cargo",
        "while [ \"$1\" != --bin ] && [ \"$1\" != -- ]; do shift; done
        [ \"$1\" = -- ] && shift && exec \"$TOWPATH_BIN\" \"$@\"
        program=$2; shift 2; exec \"$PROGRAMS/$program\" \"$@\"",
    ),
    (
        "nc",
        "[ \"$1\" = -q ] && shift 2
        exec busybox nc \"$@\"",
    ),
];

/// Waits until the server of a page listens at its published port.
const AWAIT_PORT: &str = "until grep -q \":$(printf %04X $PORT) 00000000:0000 0A\" /proc/net/tcp
do sleep 0.02; done";

/// Pages whose commands print ports, sizes or counts that differ from run to run.
const VARYING: [&str; 4] = ["packets", "chat", "measured", "connections"];

/// A page, with its only program and the commands below it.
struct Page {
    text: &'static str,
    name: &'static str,
}

impl Page {
    /// Returns the contents of the code blocks of a kind.
    fn blocks(&self, kind: &str) -> Vec<&'static str> {
        let open = format!("```{kind}\n");
        let blocks = self.text.match_indices(&open).map(|(at, _)| &self.text[at + open.len()..]);
        blocks.map(|rest| rest.split_once("```").expect("the block ends").0).collect()
    }

    fn check_program(&self) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin").join(self.name);
        let program = fs::read_to_string(file.with_extension("rs")).unwrap();
        assert_eq!(self.blocks("rust"), [program], "{} differs from its page", file.display());
    }

    /// Runs the commands, and compares their output with the page's.
    fn check_commands(&self) {
        let port = self.text.split_once("publish(\"127.0.0.1:").map_or("", |(_, rest)| &rest[..4]);
        let mut script = String::from("set -e\nip link set lo up\n");
        let mut expected = String::new();
        for line in self.blocks("console").iter().flat_map(|block| block.lines()) {
            let Some(command) = line.strip_prefix("$ ") else {
                expected += &format!("{line}\n");
                continue;
            };
            script += &format!("{command}\n");
            if command.starts_with("cargo") && command.ends_with('&') {
                script += &format!("PORT={port}\n{AWAIT_PORT}\n");
            }
        }
        let folder = Folder::new(self.name);
        let output = folder.run(&script);
        if VARYING.contains(&self.name) {
            assert_eq!(without_numbers(&output), without_numbers(&expected), "{script}");
        } else {
            assert_eq!(output, expected, "{script}");
        }
    }
}

/// A temporary folder in which commands run.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("guide-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("bin")).unwrap();
        for (name, script) in STAND_INS {
            let path = folder.join("bin").join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self(folder)
    }

    /// Runs a script, ends the servers that it started, and returns its output.
    fn run(&self, script: &str) -> String {
        let programs = Path::new(env!("CARGO_BIN_EXE_packets")).parent().unwrap();
        let towpath = env::var_os("TOWPATH_BIN").map_or(programs.join("towpath"), PathBuf::from);
        let path = format!("{}/bin:{}", self.0.display(), env::var("PATH").unwrap());
        let mut command = Command::new("unshare");
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            command.args(["--map-current-user", "--keep-caps"]);
        }
        // With a PID namespace, all servers end with the shell.
        command.args(["--net", "--pid", "--fork", "--kill-child", "sh", "-c", script]);
        command.env("PATH", path).env("PROGRAMS", programs).env("TOWPATH_BIN", towpath);
        let output = command.current_dir(&self.0).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}\n{errors}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Replaces each number by `N`, and removes repeated spaces.
fn without_numbers(text: &str) -> String {
    let mut result = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if result.ends_with('N') => {}
            '0'..='9' => result.push('N'),
            ' ' if result.ends_with(' ') => {}
            c => result.push(c),
        }
    }
    result
}

macro_rules! page {
    ($name:ident, $file:literal) => {
        const PAGE: Page = Page {
            text: include_str!(concat!("../../../docs/guide/", $file)),
            name: stringify!($name),
        };

        #[test]
        fn the_program_is_that_of_the_page() {
            PAGE.check_program();
        }
    };
}

/// Tests of a page whose commands do not depend on times.
macro_rules! pages {
    ($($name:ident $file:literal)*) => {$(
        mod $name {
            use super::*;

            page!($name, $file);

            #[test]
            fn the_commands_print_what_the_page_says() {
                PAGE.check_commands();
            }
        }
    )*};
}

/// Tests of a page whose commands need a machine that is fast enough, or take long.
macro_rules! timed_pages {
    ($($name:ident $file:literal)*) => {$(
        mod $name {
            use super::*;

            page!($name, $file);

            mod nightly {
                #[test]
                fn the_commands_print_what_the_page_says() {
                    super::PAGE.check_commands();
                }
            }
        }
    )*};
}

pages! {
    packets "01-first-packet.md"
    server "02-server.md"
    client "03-client.md"
    lines "04-lines.md"
    zeros "05-backpressure.md"
    heartbeat "06-timers.md"
    worker "08-threads.md"
}

timed_pages! {
    chat "07-chat.md"
    measured "09-measuring.md"
    connections "10-connections.md"
}
