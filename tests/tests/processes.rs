//! fork, exec and posix_spawn: who has which socket, whatever the programs are.

use std::process::Command;
use std::time::Duration;

use towpath_tests::{Mode, Namespace, Scratch, program, run, towpath};

/// Compiles a C program of a few words.
fn compiled(folder: &Scratch, name: &str, text: &str, options: &[&str]) -> String {
    let (source, binary) = (folder.write(&format!("{name}.c"), text), folder.file(name));
    let gcc = Command::new("gcc").args(options).args(["-o", &binary, &source]).output();
    let gcc = gcc.expect("gcc");
    assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
    binary
}

/// A child that the preload library does not reach does not keep its parent's connections open.
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
         given: held True, then ended True\n"
    );
}

/// An engine without descriptors for another process says so where the program asks for one, and those
/// that are there can become other programs, however many descriptors are left over.
#[test]
fn a_run_has_only_so_many_processes() {
    let (ns, towpath) = (Namespace::new(), towpath());
    let script = program("processes/too_many.py");
    for limit in 96..106 {
        let limit = format!("--nofile={limit}:{limit}");
        let line = ["prlimit", &limit, &towpath, "run", "--", "python3", &script];
        let out = ns.spawn(&line).wait(Duration::from_secs(60)).ok();
        assert_eq!(
            out.stdout,
            "fork: EAGAIN\nposix_spawn: EAGAIN\npopen: EAGAIN\nexec: as ever\nafterwards: as ever\n",
            "{limit}"
        );
    }
}
