//! fork, exec and posix_spawn: processes inherit the correct sockets, with all kinds of programs.

use std::process::Command;
use towpath_tests::{Mode, Namespace, PATIENCE, Scratch, program, run, towpath};

/// Compiles a C program.
fn compiled(folder: &Scratch, name: &str, text: &str, options: &[&str]) -> String {
    let (source, binary) = (folder.write(&format!("{name}.c"), text), folder.file(name));
    let gcc = Command::new("gcc").args(options).args(["-o", &binary, &source]).output();
    let gcc = gcc.expect("gcc");
    assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
    binary
}

/// A child without the preload library does not keep its parent's connections open.
#[test]
fn static_programs_hold_what_they_were_given_and_no_more() {
    let (ns, folder) = (Namespace::new(), Scratch::new());
    let text = "#include <unistd.h>\nint main(void) { sleep(60); return 0; }\n";
    let sleeper = compiled(&folder, "sleeper", text, &["-static"]);
    let script = program("processes/strangers.py");
    let out = run(&ns, Mode::Rootless, &[], &["python3", &script, &sleeper]).ok();
    assert_eq!(
        out.stdout,
        "fork_and_exec: ended True, running True, others True\n\
         spawn: ended True, running True, others True\n\
         later: ended True\n\
         given: held True, then ended True\n"
    );
}

/// In a chroot without the preload library's file, executed programs leave the stack, are reported,
/// and can be refused. Running programs continue. (With the file, everything is as on the kernel:
/// `oracle/chroot.c`.)
#[test]
fn programs_executed_in_a_chroot_without_the_library_leave_the_stack() {
    let (ns, folder, towpath) = (Namespace::new(), Scratch::new(), towpath());
    let source = std::fs::read_to_string(program("oracle/chroot.c")).expect("the program");
    let include = format!("-I{}", program("oracle"));
    let binary = compiled(&folder, "chroot", &source, &[&include, "-O1"]);
    let run = |options: &[&str]| {
        let mut line = vec![towpath.as_str(), "run"];
        line.extend(options);
        line.extend(["--", &binary, "without the library"]);
        ns.spawn(&line).wait(PATIENCE).ok()
    };
    let lines = |text: &str| {
        text.lines().filter(|line| line.contains("image")).map(str::to_owned).collect()
    };
    let out = run(&[]);
    let what_runs = [
        "a connection of before: from outside, then the end\n",
        "a child's: from a child, then the end\n",
        "from outside: by one who is outside, then the end\n",
        "outside, given: by a received one, then the end\n",
    ];
    for line in what_runs {
        assert!(out.stdout.contains(line), "{line} is missing in {}", out.stdout);
    }
    let found: Vec<String> = lines(&out.stdout);
    let once = [
        "image without /proc: 1",
        "image writes: EBADF",
        "image: a new connection, then the end",
        "image ended: 1792",
        "from the image: , then the end",
    ];
    assert_eq!(found, once.repeat(3), "{}", out.stdout);
    assert_eq!(
        out.stderr.matches("/program runs where the preload library's file is not").count(),
        1,
        "{}",
        out.stderr
    );
    let out = run(&["--strict"]);
    for line in ["exec: EACCES\n", "posix_spawn: 13\n", "fexecve: EACCES\n"] {
        assert!(out.stdout.contains(line), "{line} is missing in {}", out.stdout);
    }
    assert!(!out.stdout.contains("image writes"), "{}", out.stdout);
}

/// An engine without descriptors for another process returns an error when the program requests
/// one. Existing processes can execute other programs regardless of the number of descriptors left.
#[test]
fn a_run_has_only_so_many_processes() {
    let (ns, towpath) = (Namespace::new(), towpath());
    let script = program("processes/too_many.py");
    for limit in 96..106 {
        let limit = format!("--nofile={limit}:{limit}");
        let line = ["prlimit", &limit, &towpath, "run", "--", "python3", &script];
        let out = ns.spawn(&line).wait(PATIENCE).ok();
        assert_eq!(
            out.stdout,
            "fork: EAGAIN\nposix_spawn: EAGAIN\npopen: EAGAIN\nexec: as ever\n\
             afterwards: as ever\n",
            "{limit}"
        );
    }
}
