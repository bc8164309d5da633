//! Checks of the library's machine code: which libc functions it calls.

mod calls;

use std::sync::LazyLock;

use calls::{Allowed, Library, binds_own_functions, does_not_call_itself, output, reached};

/// Allowed calls: part of the caller's name, the symbols called, and the reason.
const ALLOWED: [Allowed; 4] = [
    // futex(2): our syscall(2) passes it to the kernel unchanged.
    ("3std3sys4sync", &["syscall"]),
    // getrandom(2): likewise. The other symbols serve kernels without it (before Linux 3.17). Their
    // code opens /dev/urandom, a path that our open does not replace.
    ("6random5linux9getrandom", &["syscall", "open64", "close", "poll", "read"]),
    // Drops the descriptors of a message that were not taken; `recv_reply` takes all of them.
    ("Ancillary", &["close", "fcntl"]),
    // Drops a result whose descriptor has been taken already, so nothing is closed.
    ("Result$LT$std..os..fd..owned..OwnedFd", &["close", "fcntl"]),
];

static LIBRARY: LazyLock<Library> = LazyLock::new(|| Library::of("towpath-preload"));

#[test]
fn the_library_does_not_call_itself() {
    does_not_call_itself(&LIBRARY, &ALLOWED);
}

#[test]
fn the_library_binds_its_own_functions() {
    binds_own_functions(&LIBRARY);
}

/// Large tables must be zero-initialized, because zero pages use no memory until touched. A single
/// nonzero byte would store a whole static in the file.
#[test]
fn tables_are_no_part_of_the_file() {
    let sections = output("objdump", &["-h", &LIBRARY.file]);
    let size = |name: &str| {
        let mut words = sections.lines().map(|line| line.split_whitespace().skip(1));
        let size =
            words.find_map(|mut words| (words.next()? == name).then(|| words.next()).flatten());
        usize::from_str_radix(size.expect("every library has it"), 16).expect("hexadecimal")
    };
    assert!(size(".data") < 64 << 10 && size(".bss") > 16 << 20, "{sections}");
}

/// Calls by number must not require libc functions that are too new. glibc before 2.33 has no
/// fstat, stat and fstatat, before 2.28 no statx, before 2.34 no execveat.
#[test]
fn calls_by_number_need_no_young_function() {
    const YOUNG: [&str; 5] = ["fstat", "stat", "fstatat", "statx", "execveat"];
    let calls = &LIBRARY.calls;
    // Name of the static in `real` that holds a libc function.
    let held = |name: &str| format!("4real7symbols{}{name}17h", name.len());
    let needed = |from: &str| -> Vec<&str> {
        let reached = reached(calls, from);
        let is_reached = |name: &&&str| reached.iter().any(|to| to.contains(&held(name)));
        YOUNG.iter().filter(is_reached).copied().collect()
    };
    for name in YOUNG {
        assert!(needed(name).contains(&name), "the function of that name needs it");
    }
    let special = calls.keys().find(|name| name.contains("7syscall7special"));
    assert_eq!(needed(special.expect("syscall's second half")), [""; 0]);
}
