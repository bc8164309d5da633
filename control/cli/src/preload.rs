//! Installs the preload libraries: writes them from this binary to files that the dynamic loader
//! can map.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use towpath_model::folder::{self, FOR_ALL, Folder, Lock, Refusal, Unfit};
use towpath_shm::image;

static LIBRARY: &[u8] = include_bytes!(env!("TOWPATH_PRELOAD_LIBRARY"));
/// Preload library for PROGRAM if the engine runs in PROGRAM's process (`--inline`).
static INLINE: &[u8] = include_bytes!(env!("TOWPATH_INLINE_LIBRARY"));

/// File name of the library without extension. The name is derived from the content, so runs of
/// different versions use different files. A program that executes another one later still finds
/// its own version.
const VERSION: &str = concat!("libtowpath-", env!("TOWPATH_PRELOAD_HASH"));

/// Installed preload library. Its file is not removed while this value exists.
#[derive(Debug)]
pub struct PreloadFile {
    path: PathBuf,
    /// Path of PROGRAM's library if the engine runs in PROGRAM's process; `None` without
    /// `--inline`.
    inline: Option<PathBuf>,
    refusals: Vec<Refusal>,
    // Shared lock that marks this version of the library as in use.
    _used: Option<Lock>,
}

impl PreloadFile {
    /// Returns the path of the library for programs that PROGRAM executes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the library for PROGRAM itself. Without `--inline` it is the same as
    /// [`Self::path`].
    pub fn of_program(&self) -> &Path {
        self.inline.as_deref().unwrap_or(&self.path)
    }

    /// Returns remarks for the user about preferred directories that could not be used.
    pub fn remarks(&self) -> impl Iterator<Item = String> {
        let notable = self.refusals.iter().filter(|refusal| refusal.is_notable());
        let folder = self.path.parent().unwrap_or(&self.path).display();
        notable.map(move |refusal| format!("{refusal}; the library is in {folder}"))
    }
}

/// Returns the library to preload: the file that TOWPATH_PRELOAD names, or else the built-in
/// library, which is written to a file. With `inline`, also writes the built-in library for an
/// engine in PROGRAM's process.
pub fn library(inline: bool) -> Result<PreloadFile> {
    let own = std::env::var_os("TOWPATH_PRELOAD").map(|path| {
        let path = Path::new(&path);
        let full = std::fs::canonicalize(path);
        full.with_context(|| format!("TOWPATH_PRELOAD is {}", path.display()))
    });
    let own = own.transpose()?;
    if let Some(path) = own.clone().filter(|_| !inline) {
        return Ok(PreloadFile { path, inline: None, refusals: Vec::new(), _used: None });
    }
    let install = |folder: &Folder| if inline { install_both(folder) } else { install(folder) };
    match folder::first_that(install) {
        Ok((library, refusals)) => {
            let path = own.unwrap_or_else(|| library.path.clone());
            Ok(PreloadFile { path, refusals, ..library })
        }
        Err(refusals) => {
            let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
            bail!("no place for the preload library ({}): {}", reasons.join("; "), advice())
        }
    }
}

fn advice() -> &'static str {
    if rustix::process::geteuid().is_root() {
        "make /var/lib/towpath a folder of root's that allows execution"
    } else {
        "set XDG_RUNTIME_DIR to a folder of yours that allows execution"
    }
}

/// Returns the value of LD_PRELOAD: the library, followed by the previous value. If `program` is
/// linked with a runtime of AddressSanitizer, this runtime must come first.
pub fn environment(library: &Path, before: Option<OsString>, program: &Path) -> OsString {
    let runtime = image::open(program).ok().and_then(|file| image::sanitizer(&*file));
    let before = before.unwrap_or_default();
    let library = library.as_os_str().as_bytes();
    OsString::from_vec(image::preload(runtime.as_deref(), library, before.as_bytes()))
}

fn install(folder: &Folder) -> Result<PreloadFile, Unfit> {
    folder.check_execution()?;
    remove_torn(folder);
    let used = in_use(folder);
    match write(folder, &library_of(VERSION), LIBRARY) {
        Ok(()) => {
            remove_unused(folder, Some(VERSION));
            let path = folder.path().join(library_of(VERSION));
            Ok(PreloadFile { path, inline: None, refusals: Vec::new(), _used: used })
        }
        Err(error) => {
            // Dropping the lock allows its file to be removed below.
            drop(used);
            remove_unused(folder, None);
            Err(error.into())
        }
    }
}

/// Installs the preload library and the library for `--inline`.
fn install_both(folder: &Folder) -> Result<PreloadFile, Unfit> {
    let library = install(folder)?;
    let file = inline_of(VERSION);
    write(folder, &file, INLINE)?;
    Ok(PreloadFile { inline: Some(folder.path().join(file)), ..library })
}

/// Ensures that the file exists, with the library as its content.
fn write(folder: &Folder, file: &str, library: &[u8]) -> io::Result<()> {
    for _ in 0..INSTALLS_MAX {
        if folder.read(file, library.len()).is_ok_and(|content| content == library) {
            return Ok(());
        }
        folder.replace(file, library, FOR_ALL)?;
    }
    Err(io::Error::other("the library does not stay as it was written"))
}

/// Maximum number of attempts to write the file. Several runs may write it at the same time, with
/// the same content.
const INSTALLS_MAX: u32 = 8;

/// Marks this version of the library as in use by a run.
///
/// Returns `None` if the file system does not support locks, or if another process of the user does
/// not release its exclusive lock. A run of another version may then remove the library during this
/// run.
fn in_use(folder: &Folder) -> Option<Lock> {
    for _ in 0..LOCK_TRIES {
        match folder.lock_shared(&lock_of(VERSION)) {
            Ok(Some(lock)) => return Some(lock),
            Ok(None) => std::thread::sleep(LOCK_AGAIN_AFTER),
            Err(_) => return None,
        }
    }
    None
}

/// Maximum number of attempts to take the shared lock. A run that holds the exclusive lock only
/// removes two files, which takes much less time than all attempts.
const LOCK_TRIES: u32 = 20;
const LOCK_AGAIN_AFTER: Duration = Duration::from_millis(5);

fn library_of(version: &str) -> String {
    format!("{version}.so")
}

fn inline_of(version: &str) -> String {
    format!("{version}.inline.so")
}

fn lock_of(version: &str) -> String {
    format!("{version}.lock")
}

/// Removes partially written files of this version, which killed runs have left. Ignores errors,
/// because these files only occupy space.
fn remove_torn(folder: &Folder) {
    let names = folder.names().unwrap_or_default();
    // Prefix of the names of temporary files: see `Folder::replace`.
    let halves = [library_of(VERSION), inline_of(VERSION)].map(|file| file + ".");
    let is_torn = |name: &&String| halves.iter().any(|half| name.starts_with(half));
    let mut torn = names.iter().filter(is_torn).peekable();
    if torn.peek().is_none() {
        return;
    }
    // If a run is writing such a file, it holds the lock. So the exclusive lock cannot be taken,
    // and nothing is removed.
    if let Ok(Some(_unused)) = folder.lock_exclusive(&lock_of(VERSION)) {
        torn.for_each(|name| folder.remove(name));
    }
}

/// Removes unused libraries of other versions, and their partially written files. Ignores errors,
/// because these files only occupy space.
fn remove_unused(folder: &Folder, keep: Option<&str>) {
    let names = folder.names().unwrap_or_default();
    let version_of = |name: &str| -> Option<String> {
        let (version, rest) = name.split_once('.')?;
        let is_file = rest == "lock" || rest.starts_with("so") || rest.starts_with("inline.so");
        (version.starts_with("libtowpath-") && is_file).then(|| version.to_owned())
    };
    let mut versions: Vec<_> = names.iter().filter_map(|name| version_of(name)).collect();
    versions.sort();
    versions.dedup();
    for version in versions.iter().filter(|version| Some(version.as_str()) != keep) {
        if let Ok(Some(_unused)) = folder.lock_exclusive(&lock_of(version)) {
            let its = |name: &&String| version_of(name).as_ref() == Some(version);
            names.iter().filter(its).for_each(|name| folder.remove(name));
            folder.remove(&lock_of(version));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepended_once() {
        let path = Path::new("/run/lib.so");
        let program = Path::new("/bin/sh");
        let with = |before: &str| environment(path, Some(before.into()), program);
        assert_eq!(environment(path, None, program), "/run/lib.so");
        assert_eq!(with(""), "/run/lib.so");
        assert_eq!(with("/a.so /b.so"), "/run/lib.so:/a.so:/b.so");
        assert_eq!(with("/run/lib.so:/a.so"), "/run/lib.so:/a.so");
    }

    /// Returns a private directory for a test, and its path.
    fn scratch(name: &str) -> (PathBuf, Folder) {
        let path = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
        let folder = Folder::make(&path).unwrap();
        (folder.path().to_owned(), folder)
    }

    #[test]
    fn installed_and_repaired() {
        let (root, folder) = scratch("preload");
        let path = install(&folder).unwrap().path;
        assert_eq!(std::fs::read(&path).unwrap(), LIBRARY);
        // A truncated or wrong file is replaced, and so is a symbolic link.
        std::fs::write(&path, &LIBRARY[1..]).unwrap();
        assert_eq!(install(&folder).unwrap().path(), path);
        assert_eq!(std::fs::read(&path).unwrap(), LIBRARY);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        install(&folder).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), LIBRARY);
        // A file that other users can write to is replaced, even if its content is correct.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(&path, open).unwrap();
        install(&folder).unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o644);
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 2, "the library and its lock");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_one_for_a_program_with_the_engine_is_beside_it_when_it_is_asked_for() {
        let (root, folder) = scratch("inline");
        let library = install(&folder).unwrap();
        assert_eq!(library.of_program(), library.path());
        let both = install_both(&folder).unwrap();
        assert_eq!(both.path(), library.path());
        assert_eq!(std::fs::read(both.of_program()).unwrap(), INLINE);
        std::fs::write(both.of_program(), "torn").unwrap();
        install_both(&folder).unwrap();
        assert_eq!(std::fs::read(both.of_program()).unwrap(), INLINE);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_a_killed_run_wrote_half_of_goes_when_nobody_can_be_writing_it() {
        let (root, folder) = scratch("torn");
        let torn = root.join(format!("{}.0123456789abcdef", library_of(VERSION)));
        std::fs::write(&torn, "half").unwrap();
        let run = folder.lock_shared(&lock_of(VERSION)).unwrap().unwrap();
        install(&folder).unwrap();
        assert!(torn.exists(), "the other run may be writing it");
        drop(run);
        install(&folder).unwrap();
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 2, "the library and its lock");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_lock_that_somebody_sits_on_holds_nobody_up() {
        let (root, folder) = scratch("held");
        let _held = folder.lock_exclusive(&lock_of(VERSION)).unwrap().unwrap();
        let library = install(&folder).unwrap();
        assert!(library.path().exists() && library._used.is_none());
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn other_versions_go_when_nobody_uses_them() {
        let (root, folder) = scratch("versions");
        let run = install(&folder).unwrap();
        let files = [
            "libtowpath-1.so",
            "libtowpath-1.so.0123",
            "libtowpath-1.inline.so",
            "libtowpath-2.so",
            "notes.so",
        ];
        let files = files.map(|name| root.join(name));
        for path in &files {
            std::fs::write(path, "another version").unwrap();
        }
        let its_run = folder.lock_shared("libtowpath-2.lock").unwrap().unwrap();
        let second = install(&folder).unwrap();
        let there = || (files.each_ref().map(|path| path.exists()), run.path.exists());
        assert_eq!(there(), ([false, false, false, true, true], true));
        drop(its_run);
        drop(second);
        // A run of another version does not remove the library, because it is in use.
        remove_unused(&folder, Some("libtowpath-3"));
        assert_eq!(there(), ([false, false, false, false, true], true));
        let path = run.path().to_owned();
        drop(run);
        remove_unused(&folder, Some("libtowpath-3"));
        assert!(!path.exists());
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 1, "notes.so, and no lock");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
