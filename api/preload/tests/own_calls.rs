//! Calls of the library, found in its machine code.

mod calls;

use std::sync::LazyLock;

use calls::{Allowed, Library, binds_own_functions, does_not_call_itself, output, reached};

/// Exceptions: part of a name, the symbols, and the reason.
const ALLOWED: [Allowed; 4] = [
    // futex(2), which our syscall(2) hands to the kernel without a look.
    ("3std3sys4sync", &["syscall"]),
    // getrandom(2), likewise. The other symbols are for kernels without it (before Linux 3.17):
    // they open /dev/urandom, a path at which our open does not look.
    ("6random5linux9getrandom", &["syscall", "open64", "close", "poll", "read"]),
    // Descriptors of a message that were not taken: `recv_reply` takes all.
    ("Ancillary", &["close", "fcntl"]),
    // Results whose descriptor was taken have nothing left to drop.
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

/// Tables of megabytes must be zeroed memory, which costs nothing before it is touched. A single
/// byte that is not zero would put a whole static into the file.
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

/// Calls by number must need no young function of libc. Before glibc 2.33 there is no fstat, stat
/// and fstatat, before 2.28 no statx, before 2.34 no execveat.
#[test]
fn calls_by_number_need_no_young_function() {
    const YOUNG: [&str; 5] = ["fstat", "stat", "fstatat", "statx", "execveat"];
    let calls = &LIBRARY.calls;
    // How `real` holds libc's function of a name.
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
