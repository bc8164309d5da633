use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::process::geteuid;

use super::{FOR_ALL, FOR_OWNER, Folder, unguessable};

/// Private directory of a test, removed when dropped. Its parent is writable only by this user.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("towpath-folder-{}", unguessable().unwrap()));
        Folder::make(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn why(path: &Path) -> String {
    Folder::make(path).unwrap_err().sentence(path)
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn only_a_folder_that_is_ours_alone_will_do() {
    let scratch = Scratch::new();
    let good = scratch.0.join("good");
    let path = Folder::make(&good).unwrap().path().to_owned();
    assert_eq!(Folder::make(&good).unwrap().path(), path);
    for wrong in [0o777, 0o770, 0o1777, 0o722] {
        set_mode(&good, wrong);
        assert!(why(&good).contains("can be written to by others"), "{wrong:o}");
        // Every parent is checked as well; a sticky one is accepted.
        let below = good.join("below");
        assert_eq!(Folder::make(&below).is_ok(), wrong == 0o1777, "{wrong:o}");
    }
    for closed in [0o700, 0o755, 0] {
        set_mode(&good, closed);
        Folder::make(&good).unwrap();
        assert_eq!(mode(&good), 0o711, "{closed:o}");
    }
    std::fs::write(scratch.0.join("file"), "").unwrap();
    assert!(why(&scratch.0.join("file")).contains("is not a folder"));
    assert!(why(&scratch.0.join("file/x")).contains("is not a folder"));
    assert!(why(&scratch.0.join("no/such")).contains("No such file"));
    assert!(Folder::make(Path::new("/")).is_err());
    assert!(why(Path::new("relative/path")).contains("relative is not an absolute path"));
    let other = geteuid().as_raw() + 1;
    let foreign = Folder::open(&good, other).unwrap_err();
    assert!(foreign.to_string().contains("belongs to user"), "{foreign}");
}

#[test]
fn links_are_followed_by_descriptor_and_vanish_from_the_path() {
    let scratch = Scratch::new();
    let real = std::fs::canonicalize(&scratch.0).unwrap();
    std::fs::create_dir_all(real.join("a/b")).unwrap();
    symlink("a/b", real.join("relative")).unwrap();
    symlink(real.join("a/b"), real.join("absolute")).unwrap();
    symlink("a/../relative/..", real.join("up")).unwrap();
    symlink("loop", real.join("loop")).unwrap();
    for (link, wanted) in [("relative", "a/b/x"), ("absolute", "a/b/x"), ("up/./b/../.", "a/x")] {
        let folder = Folder::make(&real.join(link).join("x")).unwrap();
        assert_eq!(folder.path(), real.join(wanted), "{link}");
    }
    assert!(why(&real.join("loop/x")).contains("symbolic links"));
}

#[test]
fn files_are_whole_and_ours() {
    let scratch = Scratch::new();
    let folder = Folder::make(&scratch.0).unwrap();
    folder.replace("file", b"content", FOR_ALL).unwrap();
    assert_eq!(folder.read("file", 100).unwrap(), b"content");
    assert_eq!(folder.read("file", 3).unwrap(), b"cont");
    assert_eq!(mode(&scratch.0.join("file")), 0o644);
    assert_eq!(folder.names().unwrap().iter().filter(|n| !n.starts_with('.')).count(), 1);
    set_mode(&scratch.0.join("file"), 0o666);
    assert!(folder.read("file", 100).is_err(), "others may have written to it");
    symlink("/etc/passwd", scratch.0.join("link")).unwrap();
    assert!(folder.read("link", 100).is_err());
    assert!(folder.lock_exclusive("link").is_err());
    let fifo = scratch.0.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, FOR_OWNER, 0).unwrap();
    assert!(folder.read("fifo", 100).is_err(), "nobody waits for a writer");
    assert!(folder.socket("fifo").is_err());
}

#[test]
fn locks_are_never_waited_for() {
    let scratch = Scratch::new();
    let folder = Folder::make(&scratch.0).unwrap();
    let first = folder.lock_shared("lock").unwrap().unwrap();
    assert_eq!(mode(&scratch.0.join("lock")), 0o600);
    assert!(folder.lock_shared("lock").unwrap().is_some());
    assert!(folder.lock_exclusive("lock").unwrap().is_none());
    drop(first);
    let alone = folder.lock_exclusive("lock").unwrap().unwrap();
    assert!(folder.lock_shared("lock").unwrap().is_none());
    // A lock whose file was removed is ineffective: the next run creates a new one.
    folder.remove("lock");
    assert!(folder.lock_exclusive("lock").unwrap().is_some());
    drop(alone);
}
