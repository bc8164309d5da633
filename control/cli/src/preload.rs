//! The preload library: carried in this binary, written to a file that the dynamic loader can map.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, OFlags, StatVfsMountFlags, flock};

use crate::folder;

static LIBRARY: &[u8] = include_bytes!(env!("TOWPATH_PRELOAD_LIBRARY"));

/// The file is named after its content: runs of different versions do not disturb each other, and
/// a program that executes another one later still finds its own.
const FILE_NAME: &str = concat!("libtowpath-", env!("TOWPATH_PRELOAD_HASH"), ".so");

/// The library's file, which stays where it is as long as this is not dropped.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    // With a shared lock on it, the sign that a run uses it.
    _used: Option<File>,
}

impl Library {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The library: TOWPATH_PRELOAD, or the built-in one in a file.
pub fn library() -> Result<Library> {
    if let Some(path) = std::env::var_os("TOWPATH_PRELOAD") {
        let path = Path::new(&path);
        let full = std::fs::canonicalize(path);
        let path = full.with_context(|| format!("TOWPATH_PRELOAD is {}", path.display()))?;
        return Ok(Library { path, _used: None });
    }
    let mut folders = folder::candidates();
    if rustix::process::geteuid().is_root() {
        // Programs of root change to other users, who cannot look into root's runtime folder.
        folders.reverse();
    }
    let mut refusals = Vec::new();
    for folder in &folders {
        match install(folder) {
            Ok(library) => return Ok(library),
            Err(error) => refusals.push(format!("{}: {error}", folder.display())),
        }
    }
    bail!(
        "no place for the preload library ({}): set XDG_RUNTIME_DIR to a folder of yours that allows execution",
        refusals.join("; ")
    )
}

/// LD_PRELOAD with the library in front of what was there.
pub fn environment(library: &Path, before: Option<OsString>) -> OsString {
    let library = library.as_os_str();
    let mut out = library.to_owned();
    // Within a run of towpath the library is there already.
    let separator = |b: &u8| *b == b':' || *b == b' ';
    let before = before.unwrap_or_default();
    for other in before.as_bytes().split(separator) {
        if !other.is_empty() && other != library.as_bytes() {
            out.push(":");
            out.push(OsStr::from_bytes(other));
        }
    }
    out
}

fn install(folder: &Path) -> io::Result<Library> {
    if folder.as_os_str().as_bytes().iter().any(|b| b":; $".contains(b)) {
        return Err(io::Error::other("the dynamic loader cannot take such a path"));
    }
    folder::prepare(folder)?;
    if rustix::fs::statvfs(folder)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(io::Error::other("mounted without execution"));
    }
    let path = folder.join(FILE_NAME);
    for _ in 0..INSTALLS_MAX {
        if let Some(used) = intact(&path) {
            remove_unused(folder, FILE_NAME);
            return Ok(Library { path, _used: Some(used) });
        }
        replace(&path)?;
    }
    Err(io::Error::other("the library does not stay as it was written"))
}

/// Another starter may remove the file between its writing and its locking, but not again and again.
const INSTALLS_MAX: u32 = 8;

/// The file, locked, if the library is what it holds.
fn intact(path: &Path) -> Option<File> {
    let file = open(path).ok()?;
    // Whoever holds it exclusively is about to remove it, and looks at nothing else.
    flock(&file, FlockOperation::LockShared).ok()?;
    let (ours, there) = (file.metadata().ok()?, std::fs::symlink_metadata(path).ok()?);
    if (ours.dev(), ours.ino()) != (there.dev(), there.ino()) {
        return None;
    }
    let mut content = Vec::new();
    (&file).take(LIBRARY.len() as u64 + 1).read_to_end(&mut content).ok()?;
    (content == LIBRARY).then_some(file)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path)
}

/// Removes the libraries of other versions that no run uses. Best effort: they only take up room.
fn remove_unused(folder: &Path, keep: &str) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let library = name
            .to_str()
            .filter(|name| name.starts_with("libtowpath-") && name.ends_with(".so"))
            .filter(|name| *name != keep);
        if library.is_some()
            && let Ok(file) = open(&entry.path())
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Writes the file under another name and renames it: nobody ever sees half of it.
fn replace(path: &Path) -> io::Result<()> {
    let temporary = path.with_extension(std::process::id().to_string());
    let result = write_new(&temporary).and_then(|()| std::fs::rename(&temporary, path));
    if result.is_err() {
        // Best effort: the first error is the one to tell.
        let _ = std::fs::remove_file(&temporary);
    }
    result
}

fn write_new(path: &Path) -> io::Result<()> {
    // Left over by a process of the same number that was killed here.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    // Whatever the umask is, other users must be able to load it.
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    file.write_all(LIBRARY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepended_once() {
        let path = Path::new("/run/lib.so");
        let with = |before: &str| environment(path, Some(before.into()));
        assert_eq!(environment(path, None), "/run/lib.so");
        assert_eq!(with(""), "/run/lib.so");
        assert_eq!(with("/a.so /b.so"), "/run/lib.so:/a.so:/b.so");
        assert_eq!(with("/run/lib.so:/a.so"), "/run/lib.so:/a.so");
    }

    #[test]
    fn installed_and_repaired() {
        let folder = std::env::temp_dir().join(format!("towpath-preload-{}", std::process::id()));
        let path = install(&folder).unwrap().path;
        assert_eq!(std::fs::read(&path).unwrap(), LIBRARY);
        // A torn or foreign file is replaced, and so is a link that leads elsewhere.
        std::fs::write(&path, &LIBRARY[1..]).unwrap();
        assert_eq!(install(&folder).unwrap().path(), path);
        assert_eq!(std::fs::read(&path).unwrap(), LIBRARY);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        install(&folder).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), LIBRARY);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn other_versions_go_when_nobody_uses_them() {
        let folder = std::env::temp_dir().join(format!("towpath-versions-{}", std::process::id()));
        let run = install(&folder).unwrap();
        let [unused, used, other] =
            ["libtowpath-1.so", "libtowpath-2.so", "notes.so"].map(|name| folder.join(name));
        for path in [&unused, &used, &other] {
            std::fs::write(path, "another version").unwrap();
        }
        let its_run = open(&used).unwrap();
        flock(&its_run, FlockOperation::LockShared).unwrap();
        let second = install(&folder).unwrap();
        let there = || [&unused, &used, &other, &run.path].map(|path| path.exists());
        assert_eq!(there(), [false, true, true, true]);
        drop(its_run);
        drop(second);
        // What another version's starter does: ours is in use.
        remove_unused(&folder, "libtowpath-3.so");
        assert_eq!(there(), [false, false, true, true]);
        let path = run.path().to_owned();
        drop(run);
        remove_unused(&folder, "libtowpath-3.so");
        assert!(!path.exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
