//! Checks PROGRAM before it runs: whether it exists, and whether a library can be preloaded.
//!
//! The dynamic loader silently ignores LD_PRELOAD if it is not applicable. Without these checks,
//! such a program would use the kernel's sockets unnoticed.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use towpath_shm::image::{self, Content, Elf, Outside};

use crate::error::{ExitCode, Failure};

/// Finds `program` as a shell does, and checks that the library can be preloaded. Returns its path.
///
/// # Errors
/// Returns a [`Failure`] with the exit status of env(1): 127 if the program is not found, 126 if it
/// is not executable. Returns 125 if the library cannot be loaded.
pub fn preflight(program: &OsStr) -> Result<PathBuf> {
    let path = find(program, std::env::var_os("PATH"))?;
    check(&path, program, SCRIPT_DEPTH_MAX)?;
    Ok(path)
}

/// Finds `program` as a shell does, without checking its content.
///
/// # Errors
/// Returns the errors of [`preflight`], except those about the library.
pub fn locate(program: &OsStr) -> Result<PathBuf> {
    find(program, std::env::var_os("PATH"))
}

/// Returns whether a shell would find a program with this name.
pub fn exists(program: &OsStr) -> bool {
    find(program, std::env::var_os("PATH")).is_ok()
}

/// Maximum depth of scripts whose interpreters are scripts, as in Linux (fs/exec.c).
const SCRIPT_DEPTH_MAX: u32 = 4;

fn find(program: &OsStr, search_path: Option<OsString>) -> Result<PathBuf> {
    let name = program.to_string_lossy();
    if program.is_empty() {
        return Err(Failure::error(ExitCode::NotFound, "PROGRAM is empty: nothing to run"));
    }
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

/// Checks whether a library can be preloaded into the program, or into the interpreter if the
/// program is a script.
fn check(path: &Path, program: &OsStr, depth: u32) -> Result<()> {
    let name = program.to_string_lossy();
    let Ok(file) = image::open(path) else {
        // The file may be executable but not readable. Its content cannot be checked then.
        return Ok(());
    };
    let elf = match image::content(&*file) {
        Content::Program(elf) => elf,
        Content::Script(line) => {
            if depth == 0 {
                let why =
                    format!("{name}: more than {SCRIPT_DEPTH_MAX} scripts interpret each other");
                return Err(Failure::error(ExitCode::NotExecutable, why));
            }
            return check(&interpreter(&line, &name)?, program, depth - 1);
        }
        Content::Other => {
            let why = format!(
                "{name}: not a program ({} is neither ELF nor a script that begins with #!)",
                path.display()
            );
            return Err(Failure::error(ExitCode::NotExecutable, why));
        }
    };
    let own = image::own();
    let outside = elf.outside(own.as_ref()).or_else(|| image::raises(&*file));
    let Some(outside) = outside else { return Ok(()) };
    let subject = if path.file_name() == Path::new(program).file_name() {
        name.into_owned()
    } else {
        format!("{name} ({})", path.display())
    };
    let mut why = format!("{subject} {outside}{}", advice(outside, &elf, own.as_ref()));
    if outside != Outside::OtherMachine {
        why += &format!(
            "; or let the kernel have its sockets: towpath proxy run -- {program}",
            program = program.display()
        );
    }
    Err(Failure::error(ExitCode::Failed, why))
}

/// Returns the path of a script's interpreter. For `env NAME`, looks up the program NAME.
fn interpreter(line: &[u8], script: &str) -> Result<PathBuf> {
    let missing = |what: &[u8]| {
        let hint = if what.ends_with(b"\r") {
            "; the script's lines end with CR LF, as on Windows: dos2unix or sed -i 's/\\r$//' \
             helps"
        } else {
            ""
        };
        let what = what.escape_ascii();
        let why = format!("{script}: its interpreter {what} was not found{hint}");
        Failure::error(ExitCode::NotFound, why)
    };
    let path = image::interpreter(line).ok_or_else(|| missing(b"(empty #! line)"))?;
    let path = Path::new(OsStr::from_bytes(path));
    if path.file_name() == Some(OsStr::new("env")) {
        let words = line.split(|byte| matches!(byte, b' ' | b'\t'));
        let words = words.filter(|word| !word.is_empty()).skip(1);
        let is_command = |word: &&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
        if let Some(command) = words.into_iter().find(is_command) {
            let found = find(OsStr::from_bytes(command), std::env::var_os("PATH"));
            return found.map_err(|_| missing(command));
        }
    }
    if path.exists() { Ok(path.to_owned()) } else { Err(missing(path.as_os_str().as_bytes())) }
}

/// Returns the end of the message about a program into which no library can be preloaded, with
/// advice.
fn advice(outside: Outside, elf: &Elf, own: Option<&Elf>) -> String {
    let text = match outside {
        Outside::OtherMachine => " than towpath: use a build for this one",
        Outside::Static => {
            ", so its sockets cannot be taken over: use a dynamically linked build of it"
        }
        Outside::Go => ", so its sockets cannot be taken over (a build by gccgo works)",
        Outside::OtherLibrary => {
            let name = |elf: Option<&Elf>| {
                String::from_utf8_lossy(elf.and_then(Elf::loader).unwrap_or_default()).into_owned()
            };
            return format!(
                " ({}) than towpath ({}): use a build of either that matches the other",
                name(Some(elf)),
                name(own)
            );
        }
        Outside::SetId => {
            ", so the system lets no library into it: run towpath as that user, or use a copy of \
             the program without the bit"
        }
        Outside::Capabilities => {
            ", so the system lets no library into it: run towpath as root, or use a copy of the \
             program (copying drops them; low ports and ping need none here)"
        }
        Outside::NoLibrary | Outside::NoUnwinder => "",
    };
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    /// Private directory of a test, removed when this is dropped.
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

    /// Returns the content of this test's executable, changed by `change`. Without PT_INTERP, it
    /// looks as if it were statically linked.
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
        let windows = refusal(&folder.file("windows", 0o755, b"#!/bin/sh\r\nexit 0\r\n"));
        assert_eq!(windows.0, 127);
        assert!(windows.1.contains("/bin/sh\\r was not found") && windows.1.contains("CR LF"));
        let windows = refusal(&folder.file("env-windows", 0o755, b"#!/usr/bin/env sh\r\n"));
        assert!(windows.0 == 127 && windows.1.contains("sh\\r was not found"), "{}", windows.1);
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
        let loader = [image::own().unwrap().loader().unwrap(), &[0]].concat();
        let at = musl.windows(loader.len()).position(|w| w == loader).unwrap();
        let mut musl_bytes = musl.clone();
        let other = b"ld-musl-x.so";
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
            (PathBuf::new(), 127, "PROGRAM is empty"),
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
}
