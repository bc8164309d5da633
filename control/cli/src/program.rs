//! Looking at PROGRAM before it runs: is it there, and can a library be loaded into it?
//!
//! The dynamic loader ignores LD_PRELOAD where it does not apply, without an error: the program
//! would run on the kernel's sockets and nobody would notice. So it is checked beforehand.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::error::{ExitCode, Failure};

/// Finds `program` as a shell does and checks that it can be preloaded. Returns its path.
pub fn preflight(program: &OsStr) -> Result<PathBuf> {
    let path = find(program, std::env::var_os("PATH"))?;
    check(&path, program, SCRIPT_DEPTH_MAX)?;
    Ok(path)
}

/// Scripts whose interpreter is a script: Linux follows four (BINPRM limit in fs/exec.c).
const SCRIPT_DEPTH_MAX: u32 = 4;

fn find(program: &OsStr, search_path: Option<OsString>) -> Result<PathBuf> {
    let name = program.to_string_lossy();
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match std::fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Failure::error(ExitCode::NotFound, format!("{name}: no such file")))
            }
            Err(error) => Err(Failure::error(ExitCode::NotExecutable, format!("{name}: {error}"))),
            Ok(metadata) => executable(&path, &metadata).map(|()| path),
        };
    }
    let search_path = search_path.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut refused = None;
    for folder in std::env::split_paths(&search_path) {
        let path = folder.join(program);
        if let Ok(metadata) = std::fs::metadata(&path) {
            match executable(&path, &metadata) {
                Ok(()) => return Ok(path),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
    }
    Err(refused.unwrap_or_else(|| {
        let hint = if Path::new(program).is_file() {
            format!("; for the one here: ./{name}")
        } else {
            String::new()
        };
        Failure::error(ExitCode::NotFound, format!("{name}: command not found in PATH{hint}"))
    }))
}

fn executable(path: &Path, metadata: &Metadata) -> Result<()> {
    let refuse = |why: &str| {
        Err(Failure::error(ExitCode::NotExecutable, format!("{}: {why}", path.display())))
    };
    if metadata.is_dir() {
        return refuse("is a directory");
    }
    let allowed = rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    if !allowed || metadata.permissions().mode() & 0o111 == 0 {
        return refuse("not executable (chmod +x makes it so)");
    }
    Ok(())
}

/// Follows scripts to their interpreter and checks the program there.
fn check(path: &Path, program: &OsStr, depth: u32) -> Result<()> {
    let name = program.to_string_lossy();
    let Ok(file) = File::open(path) else {
        // Executable but not readable: also the loader will not tell, so neither can we.
        return Ok(());
    };
    let mut start = Vec::new();
    (&file).take(HEAD_LEN).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        if depth == 0 {
            let why = format!("{name}: more than {SCRIPT_DEPTH_MAX} scripts interpret each other");
            return Err(Failure::error(ExitCode::NotExecutable, why));
        }
        let interpreter = interpreter(line, &name)?;
        return check(&interpreter, program, depth - 1);
    }
    let metadata = file.metadata()?;
    let elf = Elf::parse(&start, &file).ok_or_else(|| {
        let why = format!(
            "{name}: not a program ({} is neither ELF nor a script that begins with #!)",
            path.display()
        );
        Failure::error(ExitCode::NotExecutable, why)
    })?;
    let own = own_elf();
    preloadable(&elf, own.as_ref(), &Privileges::of(path, &metadata)).map_err(|why| {
        let subject = if path.file_name() == Path::new(program).file_name() {
            name.into_owned()
        } else {
            format!("{name} ({})", path.display())
        };
        Failure::error(ExitCode::Failed, format!("{subject} {why}"))
    })
}

/// Enough for a `#!` line (the kernel reads 256 bytes) and for the program headers of any linker.
const HEAD_LEN: u64 = 4096;

/// The interpreter of a script; `env NAME` is looked up like a command.
fn interpreter(line: &[u8], script: &str) -> Result<PathBuf> {
    let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
    let mut words =
        line.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).map(OsStr::from_bytes);
    let missing = |what: &OsStr| {
        let why = format!("{script}: its interpreter {} was not found", what.to_string_lossy());
        Failure::error(ExitCode::NotFound, why)
    };
    let path = PathBuf::from(words.next().ok_or_else(|| missing(OsStr::new("(empty #! line)")))?);
    if path.file_name() == Some(OsStr::new("env")) {
        let is_command =
            |w: &&OsStr| !w.as_bytes().starts_with(b"-") && !w.as_bytes().contains(&b'=');
        if let Some(command) = words.find(is_command) {
            return find(command, std::env::var_os("PATH")).map_err(|_| missing(command));
        }
    }
    if path.exists() { Ok(path) } else { Err(missing(path.as_os_str())) }
}

/// What of an ELF file decides whether a library can be preloaded.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    class: u8,
    machine: u16,
    /// The dynamic loader it asks for.
    loader: Option<Vec<u8>>,
    /// It carries a Go build id.
    go: bool,
}

impl Elf {
    /// None when it is no ELF file, or a broken one.
    fn parse(start: &[u8], file: &impl FileExt) -> Option<Self> {
        const PT_INTERP: u32 = 3;
        const PT_NOTE: u32 = 4;
        if start.get(..4)? != b"\x7fELF" {
            return None;
        }
        let (class, data) = (*start.get(4)?, *start.get(5)?);
        let reader = Reader { bytes: start, little: data == 1 };
        let machine = reader.number(18, 2)? as u16;
        let (table, entry_len, entries) = match class {
            1 => (reader.number(28, 4)?, reader.number(42, 2)?, reader.number(44, 2)?),
            2 => (reader.number(32, 8)?, reader.number(54, 2)?, reader.number(56, 2)?),
            _ => return None,
        };
        let mut elf = Self { class, machine, loader: None, go: false };
        let headers = read_at(file, table, entry_len.checked_mul(entries)?)?;
        for entry in headers.chunks_exact(usize::try_from(entry_len).ok().filter(|n| *n > 0)?) {
            let reader = Reader { bytes: entry, little: data == 1 };
            let kind = reader.number(0, 4)? as u32;
            let (offset, len) = match class {
                1 => (reader.number(4, 4)?, reader.number(16, 4)?),
                _ => (reader.number(8, 8)?, reader.number(32, 8)?),
            };
            match kind {
                PT_INTERP => {
                    let mut path = read_at(file, offset, len)?;
                    path.retain(|b| *b != 0);
                    elf.loader = Some(path);
                }
                PT_NOTE => elf.go |= read_at(file, offset, len).is_some_and(|n| is_go_note(&n)),
                _ => {}
            }
        }
        Some(elf)
    }
}

/// A note of the Go linker: name length 4, any length, type 4 (build id), name "Go".
fn is_go_note(note: &[u8]) -> bool {
    note.get(12..16) == Some(b"Go\0\0")
}

/// Reads `len` bytes at `offset`; None when the file does not have them or they are absurdly many.
fn read_at(file: &impl FileExt, offset: u64, len: u64) -> Option<Vec<u8>> {
    const LEN_MAX: u64 = 1 << 20;
    let len = usize::try_from(len).ok().filter(|n| *n as u64 <= LEN_MAX)?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

struct Reader<'a> {
    bytes: &'a [u8],
    little: bool,
}

impl Reader<'_> {
    fn number(&self, at: usize, len: usize) -> Option<u64> {
        let bytes = self.bytes.get(at..at.checked_add(len)?)?;
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(if self.little { bytes.iter().rev().fold(0, add) } else { bytes.iter().fold(0, add) })
    }
}

fn own_elf() -> Option<Elf> {
    let file = File::open("/proc/self/exe").ok()?;
    let mut start = Vec::new();
    (&file).take(HEAD_LEN).read_to_end(&mut start).ok()?;
    Elf::parse(&start, &file)
}

/// Whether execution raises privileges, which makes the loader ignore LD_PRELOAD.
#[derive(Debug, Default)]
struct Privileges {
    set_id: bool,
    capabilities: bool,
}

impl Privileges {
    fn of(path: &Path, metadata: &Metadata) -> Self {
        let mode = metadata.mode();
        let set_user = mode & 0o4000 != 0 && metadata.uid() != rustix::process::geteuid().as_raw();
        let set_group = mode & 0o2000 != 0 && metadata.gid() != rustix::process::getegid().as_raw();
        let mut value = [0; 64];
        let xattr = rustix::fs::getxattr(path, "security.capability", &mut value);
        // Root has the capabilities already: nothing is raised.
        let capabilities = xattr.is_ok() && !rustix::process::geteuid().is_root();
        Self { set_id: set_user || set_group, capabilities }
    }
}

/// `Err`: the rest of a sentence that begins with the program's name.
fn preloadable(elf: &Elf, own: Option<&Elf>, privileges: &Privileges) -> Result<(), String> {
    if own.is_some_and(|own| (elf.class, elf.machine) != (own.class, own.machine)) {
        return Err(
            "is built for another processor type than towpath: use a build for this one".into()
        );
    }
    let Some(loader) = &elf.loader else {
        return Err("is statically linked, so its sockets cannot be taken over: \
                    use a dynamically linked build of it"
            .into());
    };
    if elf.go {
        return Err(
            "is a Go program: Go calls the kernel without the C library, so its sockets cannot be \
                    taken over (a build by gccgo works)"
                .into(),
        );
    }
    if let Some(own) = own.and_then(|own| own.loader.as_ref())
        && file_name(own) != file_name(loader)
    {
        return Err(format!(
            "uses another C library ({}) than towpath ({}): use a build of either that matches the other",
            String::from_utf8_lossy(file_name(loader)),
            String::from_utf8_lossy(file_name(own)),
        ));
    }
    if privileges.set_id {
        return Err("is set-user-ID or set-group-ID, so the system lets no library into it: \
                    run towpath as that user, or use a copy of the program without the bit"
            .into());
    }
    if privileges.capabilities {
        return Err("has file capabilities, so the system lets no library into it: run towpath as root, or \
                    use a copy of the program (copying drops them; low ports and ping need none here)"
            .into());
    }
    Ok(())
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    /// A folder of this test's own, removed with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str, mode: u32, content: &[u8]) -> PathBuf {
            let path = self.0.join(name);
            let mut options = std::fs::OpenOptions::new();
            let mut file =
                options.create(true).truncate(true).write(true).mode(mode).open(&path).unwrap();
            file.write_all(content).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn refusal(path: &Path) -> (u8, String) {
        let error = preflight(path.as_os_str()).expect_err("refused");
        (crate::error::exit_code(&error), error.to_string())
    }

    /// This test's own file without its PT_INTERP: what a static program looks like.
    fn changed(change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut bytes = std::fs::read("/proc/self/exe").unwrap();
        let table = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
        let entries = usize::from(u16::from_le_bytes(bytes[56..58].try_into().unwrap()));
        for entry in bytes[table..table + 56 * entries].chunks_exact_mut(56) {
            change(entry);
        }
        bytes
    }

    const PT_NULL: [u8; 4] = [0; 4];
    const PT_INTERP: [u8; 4] = [3, 0, 0, 0];

    #[test]
    fn ordinary_programs() {
        assert_eq!(preflight(OsStr::new("true")).unwrap().file_name(), Some(OsStr::new("true")));
        assert_eq!(preflight(OsStr::new("/bin/true")).unwrap(), Path::new("/bin/true"));
    }

    #[test]
    fn scripts_are_followed() {
        let folder = Folder::new("scripts");
        let script = folder.file("direct", 0o755, b"#!/bin/sh -e\n");
        assert_eq!(preflight(script.as_os_str()).unwrap(), script);
        let through_env = folder.file("env", 0o755, b"#! /usr/bin/env -S A=1 sh -x\n");
        assert_eq!(preflight(through_env.as_os_str()).unwrap(), through_env);
        let missing = refusal(&folder.file("missing", 0o755, b"#!/no/such/interpreter\n"));
        assert_eq!(missing.0, 127);
        assert!(missing.1.contains("/no/such/interpreter"), "{}", missing.1);
        let missing = refusal(&folder.file("unknown", 0o755, b"#!/usr/bin/env no-such-command\n"));
        assert!(missing.1.contains("no-such-command"), "{}", missing.1);
        let itself = folder.0.join("loop");
        let line = format!("#!{}\n", itself.display());
        folder.file("loop", 0o755, line.as_bytes());
        assert_eq!(refusal(&itself).0, 126);
    }

    #[test]
    fn a_script_of_a_static_interpreter_names_both() {
        let folder = Folder::new("static-script");
        let interpreter = folder.file(
            "static",
            0o755,
            &changed(|entry| {
                if entry[..4] == PT_INTERP {
                    entry[..4].copy_from_slice(&PT_NULL);
                }
            }),
        );
        let line = format!("#!{}\n", interpreter.display());
        let (code, why) = refusal(&folder.file("script", 0o755, line.as_bytes()));
        assert_eq!(code, 125);
        assert!(why.contains("script (") && why.contains("statically linked"), "{why}");
    }

    #[test]
    fn what_cannot_be_preloaded_is_told() {
        let folder = Folder::new("elf");
        let musl = changed(|_| {});
        let loader = own_elf().unwrap().loader.unwrap();
        let at = musl.windows(loader.len()).position(|w| w == loader).unwrap();
        let mut musl_bytes = musl.clone();
        let other = b"/lib/ld-musl-x.so";
        musl_bytes[at..at + other.len()].copy_from_slice(other);
        musl_bytes[at + other.len()..at + loader.len()].fill(0);
        let mut foreign = musl.clone();
        foreign[18] ^= 1;
        let set_id = folder.file("set-id", 0o755, &musl);
        let own = rustix::process::geteuid().as_raw();
        let cases = [
            (folder.file("musl", 0o755, &musl_bytes), 125, "another C library (ld-musl-x.so)"),
            (folder.file("foreign", 0o755, &foreign), 125, "another processor"),
            (folder.file("text", 0o755, b"hello"), 126, "neither ELF nor a script"),
            (folder.file("torn", 0o755, &musl[..40]), 126, "neither ELF nor a script"),
            (folder.file("mode", 0o644, &musl), 126, "not executable"),
            (folder.0.clone(), 126, "is a directory"),
            (folder.0.join("none"), 127, "no such file"),
        ];
        for (path, code, wanted) in cases {
            let (got, why) = refusal(&path);
            assert!(got == code && why.contains(wanted), "{}: {got} {why}", path.display());
        }
        if own == 0 {
            std::os::unix::fs::chown(&set_id, Some(12345), None).unwrap();
            std::fs::set_permissions(&set_id, PermissionsExt::from_mode(0o4755)).unwrap();
            assert!(refusal(&set_id).1.contains("set-user-ID"));
        }
        let (code, why) = {
            let error = preflight(OsStr::new("no-such-command-anywhere")).unwrap_err();
            (crate::error::exit_code(&error), error.to_string())
        };
        assert_eq!(
            (code, why.as_str()),
            (127, "no-such-command-anywhere: command not found in PATH")
        );
    }

    #[test]
    fn go_programs_are_recognised_by_their_note() {
        let mut note = vec![4, 0, 0, 0, 83, 0, 0, 0, 4, 0, 0, 0];
        note.extend(b"Go\0\0and a build id");
        assert!(is_go_note(&note));
        assert!(!is_go_note(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0"));
        let elf = Elf { class: 2, machine: 62, loader: Some(b"/lib/ld.so".to_vec()), go: true };
        assert!(
            preloadable(&elf, None, &Privileges::default()).unwrap_err().contains("Go program")
        );
        let capable = Privileges { capabilities: true, ..Privileges::default() };
        let elf = Elf { go: false, ..elf };
        assert!(preloadable(&elf, None, &capable).unwrap_err().contains("file capabilities"));
        assert_eq!(preloadable(&elf, None, &Privileges::default()), Ok(()));
    }

    #[test]
    fn torn_files_never_panic() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let folder = Folder::new("torn");
        for len in (0..200).chain([1000, 4096]) {
            let path = folder.file("torn", 0o755, &own[..len]);
            let file = File::open(&path).unwrap();
            let start = &own[..len.min(HEAD_LEN as usize)];
            let _ = Elf::parse(start, &file);
            // Every field of the headers at its largest.
            let mut wild = start.to_vec();
            wild.iter_mut().skip(16).for_each(|b| *b = 0xff);
            assert_eq!(Elf::parse(&wild, &file), None);
        }
    }
}
