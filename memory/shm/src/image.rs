//! Checks whether an executable file can use this network stack. The dynamic loader must load the
//! stack's library (LD_PRELOAD), and the program must make system calls through the C library.
//!
//! Otherwise there would be no error: the loader ignores LD_PRELOAD, and the program uses the
//! kernel's sockets. A file is therefore checked before it is executed. The command `towpath`
//! checks the program that it starts, and the stack's library checks the programs executed by that
//! program. The functions of this module do not call libc, because the library replaces some of
//! libc's functions.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::Fd;

/// Reason why a program would use the kernel's sockets, not those of our network stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Outside {
    /// The program is built for a different processor.
    OtherMachine = 1,
    /// The program is statically linked, so no dynamic loader loads our library.
    Static = 2,
    /// A Go program, which calls the kernel without the C library, even with cgo.
    Go = 3,
    /// The program uses a different C library, which cannot load our library.
    OtherLibrary = 4,
    /// The file is set-user-ID or set-group-ID, so the loader ignores LD_PRELOAD.
    SetId = 5,
    /// The file has capabilities, so the loader ignores LD_PRELOAD.
    Capabilities = 6,
    /// The file of our preloaded library is not visible to the program, for example in a chroot.
    NoLibrary = 7,
    /// The library libgcc_s.so.1, which our preloaded library needs, is not visible to the program.
    NoUnwinder = 8,
}

impl Outside {
    /// Returns the number of the reason in messages to the engine.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// Returns the reason with this number in requests; `None` if there is none.
    pub fn from_number(number: u32) -> Option<Self> {
        use Outside::*;
        let file = [OtherMachine, Static, Go, OtherLibrary, SetId, Capabilities];
        let place = [NoLibrary, NoUnwinder];
        let mut all = file.into_iter().chain(place);
        all.find(|outside| outside.number() == number)
    }
}

/// Formats the reason as the second part of a sentence. Its subject is the program.
impl std::fmt::Display for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::OtherMachine => "is built for another processor type",
            Self::Static => "is statically linked",
            Self::Go => "is a Go program, which calls the kernel without the C library",
            Self::OtherLibrary => "uses another C library",
            Self::SetId => "is set-user-ID or set-group-ID",
            Self::Capabilities => "has file capabilities",
            Self::NoLibrary => "runs where the preload library's file is not, as in a chroot",
            Self::NoUnwinder => {
                "runs where libgcc_s.so.1 is not, which the preload library needs, as in a chroot"
            }
        })
    }
}

/// Type of a file that is to be executed.
#[derive(Debug, PartialEq, Eq)]
pub enum Content {
    /// An ELF executable.
    Program(Elf),
    /// A script. The value is the rest of its first line, after `#!`.
    Script(Vec<u8>),
    /// A file that is neither a script nor a valid ELF file.
    Other,
}

/// Properties of an ELF file that determine whether a library can be preloaded into it
/// (LD_PRELOAD).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    class: u8,
    machine: u16,
    /// Path of the dynamic loader (PT_INTERP). For a shared object without PT_INTERP, its own name
    /// (DT_SONAME): it is the loader itself, which ldd(1) runs. The loader honours LD_PRELOAD for
    /// the program that it loads.
    loader: Option<Vec<u8>>,
    /// Whether the file has a Go build ID. Go programs make system calls without libc.
    go: bool,
    /// Name of the first required library (DT_NEEDED).
    first_needed: Option<Vec<u8>>,
}

/// Opens an executable file, so that it can be parsed.
///
/// # Errors
/// Returns EACCES for a file that may be executed but not read; such a file cannot be checked.
pub fn open(path: &Path) -> Result<Fd, Errno> {
    // Open in non-blocking mode, because opening a FIFO would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty()).map(Fd::from)
}

/// Reads the start of a file and determines its type.
pub fn content(file: &impl AsFd) -> Content {
    let mut start = vec![0; HEAD_LEN];
    let mut len = 0;
    while let Ok(n @ 1..) = rustix::io::pread(file, &mut start[len..], len as u64) {
        len += n;
    }
    start.truncate(len);
    match start.strip_prefix(b"#!") {
        Some(line) => {
            Content::Script(line.split(|b| *b == b'\n').next().unwrap_or_default().to_vec())
        }
        None => Elf::parse(&start, file).map_or(Content::Other, Content::Program),
    }
}

/// Number of bytes read from the start of a file. The number suffices for a `#!` line (the kernel
/// reads 256 bytes), and the program headers of any linker.
const HEAD_LEN: usize = 4096;

/// Returns the interpreter in a script's line after `#!`. As in the kernel, it ends at a space or
/// tab.
pub fn interpreter(line: &[u8]) -> Option<&[u8]> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    line.split(is_space).find(|word| !word.is_empty())
}

/// Parses the executable file of this process. Returns `None` if that fails.
pub fn own() -> Option<Elf> {
    match content(&*open(Path::new("/proc/self/exe")).ok()?) {
        Content::Program(elf) => Some(elf),
        _ => None,
    }
}

/// Returns a reason if executing the file would raise privileges, because the loader then ignores
/// LD_PRELOAD.
pub fn raises(file: &impl AsFd) -> Option<Outside> {
    let stat = rustix::fs::fstat(file).ok()?;
    let mode = stat.st_mode;
    let set_user = mode & 0o4000 != 0 && stat.st_uid != rustix::process::geteuid().as_raw();
    // Without the execute permission of the group, the set-group-ID bit has a different meaning
    // (inode(7)).
    let set_group = mode & 0o2010 == 0o2010 && stat.st_gid != rustix::process::getegid().as_raw();
    let capable = || {
        let mut value = [0u8; 64];
        // For root, file capabilities do not raise privileges.
        !rustix::process::geteuid().is_root()
            && rustix::fs::fgetxattr(file, "security.capability", &mut value).is_ok()
    };
    let raised = if set_user || set_group {
        Some(Outside::SetId)
    } else {
        capable().then_some(Outside::Capabilities)
    };
    raised.filter(|_| !rustix::thread::no_new_privs().unwrap_or(false) && !is_nosuid(file))
}

/// Returns whether the file is on a mount that prevents raising privileges (nosuid; mnt_may_suid in
/// the kernel).
fn is_nosuid(file: &impl AsFd) -> bool {
    use rustix::fs::{StatVfsMountFlags, fstatvfs};
    fstatvfs(file).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOSUID))
}

impl Elf {
    /// Parses an ELF file, whose first bytes are `start`. Returns `None` if it is invalid.
    fn parse(start: &[u8], file: &impl AsFd) -> Option<Self> {
        const PT_LOAD: u32 = 1;
        const PT_DYNAMIC: u32 = 2;
        const PT_INTERP: u32 = 3;
        const PT_NOTE: u32 = 4;
        if start.get(..4)? != b"\x7fELF" {
            return None;
        }
        let (class, data) = (*start.get(4)?, *start.get(5)?);
        let reader = ImageReader { bytes: start, little: data == 1 };
        let machine = reader.number(18, 2)? as u16;
        let (table, entry_len, entries) = match class {
            1 => (reader.number(28, 4)?, reader.number(42, 2)?, reader.number(44, 2)?),
            2 => (reader.number(32, 8)?, reader.number(54, 2)?, reader.number(56, 2)?),
            _ => return None,
        };
        let mut elf = Self { class, machine, loader: None, go: false, first_needed: None };
        let (mut loaded, mut dynamic) = (Vec::new(), None);
        let headers = read_at(file, table, entry_len.checked_mul(entries)?)?;
        for entry in headers.chunks_exact(usize::try_from(entry_len).ok().filter(|n| *n > 0)?) {
            let reader = ImageReader { bytes: entry, little: data == 1 };
            let kind = reader.number(0, 4)? as u32;
            let (offset, address, len) = match class {
                1 => (reader.number(4, 4)?, reader.number(8, 4)?, reader.number(16, 4)?),
                _ => (reader.number(8, 8)?, reader.number(16, 8)?, reader.number(32, 8)?),
            };
            match kind {
                PT_LOAD => loaded.push(ImageSegment { offset, address, len }),
                PT_DYNAMIC => dynamic = Some(ImageSegment { offset, address, len }),
                PT_INTERP => {
                    let mut path = read_at(file, offset, len)?;
                    path.retain(|b| *b != 0);
                    elf.loader = Some(path);
                }
                PT_NOTE => {
                    let notes = read_at(file, offset, len);
                    elf.go |= notes.is_some_and(|notes| has_go_note(&notes, data == 1));
                }
                _ => {}
            }
        }
        if let Some(dynamic) = dynamic {
            let word = if class == 1 { 4 } else { 8 };
            let names =
                DynamicNames::read(file, &dynamic, &loaded, word, data == 1).unwrap_or_default();
            elf.loader = elf.loader.or(names.own);
            elf.first_needed = names.first_needed;
        }
        Some(elf)
    }

    /// Returns the reason why the stack's library cannot be preloaded into this file, or `None` if
    /// it can. `own` is an executable file into which it was preloaded, for comparison.
    pub fn outside(&self, own: Option<&Self>) -> Option<Outside> {
        if own.is_some_and(|own| (self.class, self.machine) != (own.class, own.machine)) {
            return Some(Outside::OtherMachine);
        }
        if self.go {
            return Some(Outside::Go);
        }
        let Some(loader) = self.loader() else { return Some(Outside::Static) };
        let differs = |own: &Self| own.loader().is_some_and(|own| own != loader);
        own.is_some_and(differs).then_some(Outside::OtherLibrary)
    }

    /// Returns the file name of the dynamic loader, which identifies the C library.
    pub fn loader(&self) -> Option<&[u8]> {
        self.loader.as_ref()?.rsplit(|b| *b == b'/').next()
    }
}

/// A segment of an ELF file: its position in the file, and its address in memory.
struct ImageSegment {
    offset: u64,
    address: u64,
    len: u64,
}

/// Returns the name of the AddressSanitizer runtime with which a program, or the interpreter of a
/// script, is linked. The runtime refuses to start if another library is loaded before it.
pub fn sanitizer(file: &impl AsFd) -> Option<Vec<u8>> {
    // Follow at most four scripts, as Linux does (BINPRM limit in fs/exec.c).
    let mut next: Option<Fd> = None;
    for _ in 0..=4 {
        let found = next.as_deref().map_or_else(|| content(file), content);
        match found {
            Content::Program(elf) => return elf.first_needed.filter(|name| is_sanitizer(name)),
            Content::Script(line) => {
                let path = std::ffi::OsStr::from_bytes(interpreter(&line)?).to_owned();
                next = Some(open(Path::new(&path)).ok()?);
            }
            Content::Other => return None,
        }
    }
    None
}

/// Returns whether `library`, a name or path, is the AddressSanitizer runtime of gcc or clang.
fn is_sanitizer(library: &[u8]) -> bool {
    let name = library.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.starts_with(b"libasan.so") || name.starts_with(b"libclang_rt.asan")
}

/// Returns whether LD_PRELOAD contains an AddressSanitizer runtime.
pub fn has_sanitizer(preload: &[u8]) -> bool {
    preload.split(|byte| matches!(byte, b':' | b' ')).any(is_sanitizer)
}

/// Returns the value of LD_PRELOAD for a program: `library`, followed by the previous value
/// `before`. An AddressSanitizer runtime must be loaded first. Therefore `runtime`, with which the
/// program is linked, or a runtime in `before` is put first. [`without_runtime`] removes it again
/// in the program.
pub fn preload(runtime: Option<&[u8]>, library: &[u8], before: &[u8]) -> Vec<u8> {
    let separator = |byte: &u8| matches!(byte, b':' | b' ');
    let others = || before.split(separator).filter(|path| !path.is_empty() && *path != library);
    let runtime = runtime.or_else(|| others().find(|path| is_sanitizer(path)));
    let all: Vec<_> = runtime.into_iter().chain([library]).chain(others()).collect();
    all.join(&b':')
}

/// Returns the part of LD_PRELOAD from `library` on, without an AddressSanitizer runtime before it.
/// Otherwise programs executed by this one would load the runtime, even if they do not use
/// AddressSanitizer.
pub fn without_runtime<'a>(library: &[u8], preload: &'a [u8]) -> &'a [u8] {
    let separator = |byte: &u8| matches!(byte, b':' | b' ');
    let mut at = 0;
    for path in preload.split(separator) {
        if path == library {
            return &preload[at..];
        }
        at += path.len() + 1;
    }
    preload
}

/// Names in the dynamic section of an ELF file (elf(5)).
#[derive(Debug, Default)]
struct DynamicNames {
    /// Name of the shared object (DT_SONAME). Statically linked programs have none, even
    /// position-independent ones.
    own: Option<Vec<u8>>,
    /// Name of the first required library (DT_NEEDED).
    first_needed: Option<Vec<u8>>,
}

impl DynamicNames {
    /// Reads the names from the dynamic section. Numbers in it have `word` bytes.
    fn read(
        file: &impl AsFd,
        dynamic: &ImageSegment,
        loaded: &[ImageSegment],
        word: usize,
        little: bool,
    ) -> Option<Self> {
        const DT_NULL: u64 = 0;
        const DT_NEEDED: u64 = 1;
        const DT_STRTAB: u64 = 5;
        const DT_SONAME: u64 = 14;
        let entries = read_at(file, dynamic.offset, dynamic.len)?;
        let (mut strings, mut own, mut needed) = (None, None, None);
        for entry in entries.chunks_exact(2 * word) {
            let reader = ImageReader { bytes: entry, little };
            match (reader.number(0, word)?, reader.number(word, word)?) {
                (DT_NULL, _) => break,
                (DT_STRTAB, address) => strings = Some(address),
                (DT_SONAME, at) => own = Some(at),
                (DT_NEEDED, at) if needed.is_none() => needed = Some(at),
                _ => {}
            }
        }
        let string = |at: u64| string_at(file, loaded, strings?.checked_add(at)?);
        Some(Self { own: own.and_then(string), first_needed: needed.and_then(string) })
    }
}

/// Reads the string at `address` in memory. `loaded` are the segments of the file.
fn string_at(file: &impl AsFd, loaded: &[ImageSegment], address: u64) -> Option<Vec<u8>> {
    let segment = loaded.iter().find(|segment| {
        address.checked_sub(segment.address).is_some_and(|within| within < segment.len)
    })?;
    let within = address - segment.address;
    let len = (segment.len - within).min(NAME_LEN_MAX);
    let mut text = read_at(file, segment.offset.checked_add(within)?, len)?;
    text.truncate(text.iter().position(|byte| *byte == 0)?);
    Some(text)
}

/// Maximum length of a file name: Linux's NAME_MAX plus the terminating NUL.
const NAME_LEN_MAX: u64 = 256;

/// Returns whether the notes of an ELF file contain the build ID of the Go linker (name "Go", type
/// 4). If the system's linker was used, as with cgo, that linker's notes come first.
fn has_go_note(mut notes: &[u8], little: bool) -> bool {
    const BUILD_ID: u64 = 4;
    loop {
        let reader = ImageReader { bytes: notes, little };
        let number = |at| reader.number(at, 4);
        let (Some(name_len), Some(len), Some(kind)) = (number(0), number(4), number(8)) else {
            return false;
        };
        if kind == BUILD_ID && name_len == 4 && notes.get(12..16) == Some(b"Go\0\0") {
            return true;
        }
        // Name and content are padded to 4 bytes (elf(5)). Their lengths have at most 32 bits, so
        // the sum does not overflow.
        let next = 12 + name_len.next_multiple_of(4) + len.next_multiple_of(4);
        let Some(rest) = usize::try_from(next).ok().and_then(|next| notes.get(next..)) else {
            return false;
        };
        notes = rest;
    }
}

/// Reads `len` bytes of a file from `offset` on. Returns `None` if the file is shorter, or `len`
/// exceeds 1 MiB.
fn read_at(file: &impl AsFd, offset: u64, len: u64) -> Option<Vec<u8>> {
    const LEN_MAX: u64 = 1 << 20;
    let len = usize::try_from(len).ok().filter(|n| *n as u64 <= LEN_MAX)?;
    let mut bytes = vec![0; len];
    let mut read = 0;
    while read < len {
        match rustix::io::pread(file, &mut bytes[read..], offset.checked_add(read as u64)?) {
            Ok(n @ 1..) => read += n,
            Err(Errno::INTR) => {}
            _ => return None,
        }
    }
    Some(bytes)
}

struct ImageReader<'a> {
    bytes: &'a [u8],
    little: bool,
}

impl ImageReader<'_> {
    fn number(&self, at: usize, len: usize) -> Option<u64> {
        let bytes = self.bytes.get(at..at.checked_add(len)?)?;
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(if self.little { bytes.iter().rev().fold(0, add) } else { bytes.iter().fold(0, add) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn note(name: &[u8], kind: u32, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [name.len() as u32, len as u32, kind] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(name);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.resize(bytes.len() + len.next_multiple_of(4), 7);
        bytes
    }

    #[test]
    fn go_programs_are_recognised_by_their_note_wherever_it_stands() {
        let (go, gnu) = (note(b"Go\0\0", 4, 83), note(b"GNU\0", 3, 20));
        let abi = note(b"GNU\0", 1, 16);
        assert!(has_go_note(&go, true));
        assert!(has_go_note(&[gnu.clone(), abi.clone(), go.clone()].concat(), true));
        assert!(!has_go_note(&[gnu.clone(), abi].concat(), true));
        assert!(!has_go_note(&note(b"Go\0\0", 3, 4), true));
        // Notes truncated at every position, or with arbitrary lengths, must not cause a panic.
        let whole = [gnu, go].concat();
        for len in 0..whole.len() {
            has_go_note(&whole[..len], true);
            has_go_note(&[&whole[..len], &[0xff; 40]].concat(), true);
        }
    }

    #[test]
    fn a_sanitizer_is_loaded_first_and_by_the_program_alone() {
        let value = |runtime: Option<&str>, before: &str| {
            let value = preload(runtime.map(str::as_bytes), b"/ours.so", before.as_bytes());
            String::from_utf8(value).expect("text")
        };
        assert_eq!(value(None, "/x.so /ours.so::/y.so"), "/ours.so:/x.so:/y.so");
        assert_eq!(value(Some("libasan.so.8"), "/x.so"), "libasan.so.8:/ours.so:/x.so");
        let preloaded =
            "/lib/libclang_rt.asan-x86_64.so:/ours.so:/x.so:/lib/libclang_rt.asan-x86_64.so";
        assert_eq!(value(None, "/x.so:/lib/libclang_rt.asan-x86_64.so"), preloaded);
        assert_eq!(without_runtime(b"/ours.so", b"libasan.so.8:/ours.so:/x.so"), b"/ours.so:/x.so");
        assert_eq!(without_runtime(b"/ours.so", b"/x.so"), b"/x.so");
        for other in ["libtsan.so.2", "/libasan/x.so", ""] {
            assert!(!is_sanitizer(other.as_bytes()));
        }
    }

    #[test]
    fn what_can_be_preloaded() {
        let elf = |go, loader: Option<&str>, machine| Elf {
            class: 2,
            machine,
            loader: loader.map(|path| path.as_bytes().to_vec()),
            go,
            first_needed: None,
        };
        let own = elf(false, Some("/lib64/ld-linux-x86-64.so.2"), 62);
        let outside = |elf: Elf| elf.outside(Some(&own));
        assert_eq!(outside(elf(false, Some("/lib/ld-linux-x86-64.so.2"), 62)), None);
        assert_eq!(outside(elf(false, None, 62)), Some(Outside::Static));
        assert_eq!(outside(elf(true, Some("/lib/ld-linux-x86-64.so.2"), 62)), Some(Outside::Go));
        assert_eq!(outside(elf(true, None, 62)), Some(Outside::Go));
        let musl = elf(false, Some("/lib/ld-musl-x86_64.so.1"), 62);
        assert_eq!(outside(musl), Some(Outside::OtherLibrary));
        assert_eq!(outside(elf(false, None, 183)), Some(Outside::OtherMachine));
    }

    /// Tests that a set-user-ID program of another user counts as raising privileges, except on a
    /// mount with `nosuid`. The test needs root to create the program and the mount.
    #[test]
    fn nothing_raises_privileges_on_a_mount_that_forbids_it() {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let raised_on = |options: &str| {
            let make = format!(
                "mount -t tmpfs -o {options} none /mnt && cp /bin/true /mnt/program
                 chown 1:1 /mnt/program && chmod 4755 /mnt/program && echo ready && read end"
            );
            let mut other = Command::new("unshare")
                .args(["--mount", "sh", "-c", &make])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(other.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            let path = format!("/proc/{}/root/mnt/program", other.id());
            let raised = raises(&*open(Path::new(&path)).unwrap());
            drop(other.stdin.take());
            other.wait().unwrap();
            raised
        };
        assert_eq!(raised_on("suid"), Some(Outside::SetId));
        assert_eq!(raised_on("nosuid"), None);
    }

    /// Tests the dynamic loader itself as the program, as run by ldd(1).
    #[test]
    fn the_loader_is_a_program_that_the_library_is_loaded_into() {
        let own = own().unwrap();
        let path = String::from_utf8(own.loader.clone().unwrap()).unwrap();
        let Content::Program(loader) = content(&*open(Path::new(&path)).unwrap()) else {
            panic!("{path} is not a program");
        };
        assert_eq!(loader.loader(), own.loader());
        assert_eq!(loader.outside(Some(&own)), None);
        // If the loader itself is the executable of this process, other files are compared with the
        // loader.
        assert_eq!(own.outside(Some(&loader)), None);
        let musl = Elf { loader: Some(b"/lib/ld-musl-x86_64.so.1".to_vec()), ..own };
        assert_eq!(musl.outside(Some(&loader)), Some(Outside::OtherLibrary));
    }

    #[test]
    fn interpreters() {
        let taken = |line: &[u8]| interpreter(line).map(|path| path.to_vec());
        assert_eq!(taken(b" /bin/sh -e"), Some(b"/bin/sh".to_vec()));
        assert_eq!(taken(b"\t/usr/bin/env\tpython"), Some(b"/usr/bin/env".to_vec()));
        assert_eq!(taken(b"/bin/sh\r"), Some(b"/bin/sh\r".to_vec()), "as the kernel takes it");
        assert_eq!(taken(b"  "), None);
    }

    #[test]
    fn torn_files_never_panic() {
        let own_bytes = std::fs::read("/proc/self/exe").unwrap();
        let path = std::env::temp_dir().join(format!("towpath-torn-{}", std::process::id()));
        for len in (0..200).chain([1000, 4096]) {
            std::fs::File::create(&path).unwrap().write_all(&own_bytes[..len]).unwrap();
            let file = open(&path).unwrap();
            content(&*file);
            // All fields of the headers have their maximum value.
            let mut wild = own_bytes[..len].to_vec();
            wild.iter_mut().skip(16).for_each(|b| *b = 0xff);
            assert_eq!(Elf::parse(&wild, &*file), None);
        }
        // Use the dynamic loader, which has a dynamic section: truncate it, and overwrite words.
        let loader = String::from_utf8(own().unwrap().loader.unwrap()).unwrap();
        let whole = std::fs::read(loader).unwrap();
        let section = whole.windows(8).rposition(|word| word == [14, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        for len in (0..whole.len()).step_by(whole.len() / 50) {
            std::fs::write(&path, &whole[..len]).unwrap();
            content(&*open(&path).unwrap());
            let mut wild = whole.clone();
            let offset = u64::MAX >> (len % 64);
            wild[section + 8..section + 16].copy_from_slice(&offset.to_le_bytes());
            std::fs::write(&path, wild).unwrap();
            let found = content(&*open(&path).unwrap());
            let nameless = matches!(found, Content::Program(elf) if elf.loader.is_none());
            assert!(nameless || offset < whole.len() as u64, "the name's place is looked at");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn numbers_stand_for_reasons() {
        for number in 0..10 {
            let found = Outside::from_number(number);
            assert!(found.is_none_or(|outside| outside.number() == number));
        }
        assert_eq!(Outside::from_number(7), Some(Outside::NoLibrary));
        assert_eq!(Outside::from_number(8), Some(Outside::NoUnwinder));
        assert_eq!(Outside::from_number(9), None);
    }
}
