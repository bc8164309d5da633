//! Unintercepted programs are reported, or refused.
#![allow(clippy::print_stderr)] // For readers of why a test is left out.

use crate::fresh;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory with test programs.
struct Folder(fresh::Folder);

impl Folder {
    fn new() -> Self {
        let folder = fresh::Folder::new();
        // Other users must be able to execute the programs.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("changed");
        Self(folder)
    }

    fn file(&self, name: &str, mode: u32, content: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("changed");
        path
    }

    /// Writes a copy of true(1) without the program header of type `kind`.
    fn without(&self, name: &str, kind: u8) -> PathBuf {
        let mut bytes = std::fs::read("/bin/true").expect("true");
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes);
        let table = word(32).expect("8 bytes") as usize;
        for at in (table..).step_by(56).take(usize::from(bytes[56])) {
            if bytes[at..at + 4] == [kind, 0, 0, 0] {
                bytes[at] = 0;
            }
        }
        self.file(name, 0o755, &bytes)
    }
}

const PT_INTERP: u8 = 3;

fn run(folder: &Folder, options: &[&str], script: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.arg("run").args(options).args(["--", "sh", "-c", script]);
    command.current_dir(folder.0.path()).output().expect("towpath")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Counts the occurrences of a text in standard error.
fn count(output: &Output, text: &str) -> usize {
    stderr(output).matches(text).count()
}

#[test]
fn a_static_child_is_named_once() {
    let folder = Folder::new();
    folder.without("static", PT_INTERP);
    folder.file("script", 0o755, b"#!./static\n");
    // The program crashes without a loader, but only its execution matters here.
    let ran = run(&folder, &[], "./static; ./static; PATH=.:$PATH; static; ./script; exit 7");
    assert_eq!(ran.status.code(), Some(7), "{}", stderr(&ran));
    assert_eq!(
        count(&ran, "towpath: ./static is statically linked: its sockets are this host's"),
        1
    );
    assert_eq!(count(&ran, "towpath: ./script is statically linked"), 1, "{}", stderr(&ran));
    assert_eq!(count(&run(&folder, &["-q"], "./static; exit 0"), "statically linked"), 0);
}

/// A shell forks a process for a background command.
#[test]
fn the_process_that_executes_it_is_named() {
    let folder = Folder::new();
    folder.without("static", PT_INTERP);
    let ran = run(&folder, &[], "./static & echo $!; wait; exit 7");
    assert_eq!(ran.status.code(), Some(7), "{}", stderr(&ran));
    let child = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
    assert_eq!(count(&ran, &format!("(process {child} executes it")), 1, "{}", stderr(&ran));
}

#[test]
fn strict_refuses() {
    let folder = Folder::new();
    folder.without("static", PT_INTERP);
    let ran = run(&folder, &["--strict"], "./static; echo $?; /bin/true; echo $?");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "126\n0\n", "{}", stderr(&ran));
    assert!(stderr(&ran).contains("./static is statically linked: refused (--strict)"));
    // posix_spawn, by name.
    let spawn = "PATH=.:$PATH exec python3 -c '
import os
try: os.posix_spawnp(\"static\", [\"static\"], os.environ)
except PermissionError: print(\"refused\")'";
    let ran = run(&folder, &["--strict"], spawn);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "refused\n", "{}", stderr(&ran));
}

/// ldd(1) executes the dynamic loader, which preloads the library into the program that it runs.
#[test]
fn the_loader_as_a_program_does_not_leave_the_stack() {
    let folder = Folder::new();
    let interpreter = std::fs::read("/bin/true").expect("true");
    let at = interpreter.windows(6).position(|part| part == b"/lib64").expect("its interpreter");
    let path = interpreter[at..].split(|byte| *byte == 0).next().expect("a part");
    let loader = String::from_utf8_lossy(path);
    let show = "import socket\nwith socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:\n  \
                s.connect(('10.0.2.2', 9)); print(s.getsockname()[0])";
    folder.file("show.py", 0o644, show.as_bytes());
    // Programs executed by a process remain on the stack, even if the loader was started by name.
    // Use Python's real path, because python3 may be a script.
    let script = format!(
        "export PYTHON=$(python3 -c 'import sys; print(sys.executable)')
        ldd /bin/true >/dev/null && {loader} $(command -v sh) -c '{loader} $PYTHON show.py; true'"
    );
    let ran = run(&folder, &["--strict"], &script);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "10.0.2.15\n", "{}", stderr(&ran));
    assert_eq!(stderr(&ran), "");
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    let directly = command.args(["run", "--", &loader, "/usr/bin/env", "python3", "-c", show]);
    let directly = directly.output().expect("towpath");
    assert_eq!(String::from_utf8_lossy(&directly.stdout), "10.0.2.15\n", "{}", stderr(&directly));
}

/// With cgo, the system's linker puts its own notes before Go's.
#[test]
fn go_is_found_behind_other_notes() {
    let folder = Folder::new();
    let mut bytes = std::fs::read("/bin/true").expect("true");
    // Change the ABI note (GNU, type 1) into a build id of Go. The build id of GNU stays in its
    // place.
    let abi = [4, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, b'G', b'N', b'U', 0];
    let at = bytes.windows(16).position(|part| part == abi).expect("the note of the ABI");
    bytes[at + 8] = 4;
    bytes[at + 12..at + 16].copy_from_slice(b"Go\0\0");
    let go = folder.file("go", 0o755, &bytes);
    let ran = run(&folder, &[], "./go; exit 7");
    assert_eq!(ran.status.code(), Some(7));
    assert_eq!(count(&ran, "./go is a Go program"), 1, "{}", stderr(&ran));
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    let refused = command.args(["run", "--"]).arg(&go).output().expect("towpath");
    assert_eq!(refused.status.code(), Some(125));
    assert!(stderr(&refused).contains("is a Go program"), "{}", stderr(&refused));
}

/// Skipped without root.
#[test]
fn set_id_and_chroot_children_are_named() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: needs root, to make a set-user-ID program and a chroot");
        return;
    }
    let folder = Folder::new();
    let bytes = std::fs::read("/bin/true").expect("true");
    let set_id = folder.file("set-id", 0o755, &bytes);
    std::os::unix::fs::chown(&set_id, Some(12345), None).expect("chown");
    std::fs::set_permissions(&set_id, PermissionsExt::from_mode(0o4755)).expect("chmod");
    let root = folder.0.path().join("root");
    for part in ["bin", "lib64", "lib/x86_64-linux-gnu"] {
        std::fs::create_dir_all(root.join(part)).expect("a folder");
    }
    for file in ["/bin/true", "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"] {
        std::fs::copy(file, root.join(file.trim_start_matches('/'))).expect("copied");
    }
    let ran = run(&folder, &[], "./set-id; chroot root /bin/true; exit 7");
    assert_eq!(ran.status.code(), Some(7), "{}", stderr(&ran));
    assert_eq!(count(&ran, "./set-id is set-user-ID"), 1, "{}", stderr(&ran));
    assert_eq!(count(&ran, "/bin/true runs where the preload library's file is not"), 1);
    let ran = run(&folder, &["--strict"], "./set-id; echo $?; chroot root /bin/true; echo $?");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "126\n126\n", "{}", stderr(&ran));
    // The library exists in the chroot, but its dependencies do not.
    let script =
        "mkdir -p root${LD_PRELOAD%/*} && cp $LD_PRELOAD root$LD_PRELOAD; chroot root /bin/true";
    let ran = run(&folder, &[], &format!("{script}; exit 7"));
    assert_eq!(ran.status.code(), Some(7), "{}", stderr(&ran));
    assert_eq!(count(&ran, "/bin/true runs where libgcc_s.so.1 is not"), 1, "{}", stderr(&ran));
    let ran = run(&folder, &["--strict"], &format!("{script}; echo $?"));
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "126\n", "{}", stderr(&ran));
    let unwinder = "lib/x86_64-linux-gnu/libgcc_s.so.1";
    std::fs::copy(Path::new("/").join(unwinder), root.join(unwinder)).expect("copied");
    let ran = run(&folder, &["--strict"], "chroot root /bin/true; echo $?");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "0\n", "{}", stderr(&ran));
    assert_eq!(stderr(&ran), "");
}

#[test]
fn a_library_that_is_not_ours_is_told() {
    let library = ["/lib/x86_64-linux-gnu/libm.so.6", "/usr/lib/libm.so.6"];
    let library = library.into_iter().find(|path| Path::new(path).exists()).expect("a library");
    let run = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
        command.arg("run").args(options).args(["--", "sh", "-c", "exit 3"]);
        command.env("TOWPATH_PRELOAD", library).output().expect("towpath")
    };
    let ran = run(&[]);
    assert_eq!(ran.status.code(), Some(3));
    assert!(stderr(&ran).contains("sh never used the stack"), "{}", stderr(&ran));
    assert_eq!(run(&["--strict"]).status.code(), Some(125));
}
