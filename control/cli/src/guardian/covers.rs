//! Private files in /etc of a run, bind-mounted over those of the host.
//!
//! If the host renames another file over a mount point, or unlinks it, the kernel removes the mount
//! in all mount namespaces. Network managers do so on every change. A thread of the guardian
//! therefore watches the directories, and binds the run's file over the new file.
//!
//! The files are stored in a tmpfs mounted on /etc. The host's /etc is mounted on top of it again,
//! so that no path leads to the tmpfs. The guardian accesses its files through descriptors:
//!
//! ```text
//!   /etc of the host, bound ◄── a file of the tmpfs is bound to each path
//!   tmpfs "towpath"             (accessible through descriptors only)
//!   /etc of the host
//! ```

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{CWD, Mode, OFlags, fstat, openat, stat};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind, move_mount,
    open_tree, unmount,
};

/// Directory that contains all private files, and exists on every system.
const FOLDER: &str = "/etc";
/// Size of the buffer for inotify events in bytes. The content of the events is ignored, because
/// they only wake the thread.
const EVENTS_LEN: usize = 4096;

/// A private file of the run, and the path over which it is mounted.
#[derive(Debug)]
struct Cover {
    path: &'static str,
    file: OwnedFd,
}

/// Private files of a run, in its mount namespace.
#[derive(Debug, Default)]
pub struct Covers {
    covers: Vec<Cover>,
}

impl Covers {
    /// Bind-mounts files with these contents over their paths in /etc, for all processes of this
    /// mount namespace. Returns the mounted files, and the paths at which no file exists yet.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a mount.
    pub fn new(files: &[(&'static str, Vec<u8>)]) -> Result<(Self, Vec<&'static str>)> {
        if files.is_empty() {
            return Ok((Self::default(), Vec::new()));
        }
        let covers = Self { covers: make(files)? };
        let mut missing = Vec::new();
        for cover in &covers.covers {
            if !cover.bind().with_context(|| format!("bind a file to {}", cover.path))? {
                missing.push(cover.path);
            }
        }
        Ok((covers, missing))
    }

    /// Starts a thread that mounts the files again whenever the host replaces them. The thread runs
    /// until this process ends.
    ///
    /// # Errors
    /// Returns an error if the thread or its inotify instance cannot be created.
    pub fn keep(self) -> Result<()> {
        if self.covers.is_empty() {
            return Ok(());
        }
        let watch = inotify::init(CreateFlags::CLOEXEC).context("inotify")?;
        let keep = move || {
            let mut events = [0; EVENTS_LEN];
            loop {
                // Bind again after adding the watches, because the replacement of a file before
                // that causes no event.
                self.bind_all();
                self.watch(&watch);
                self.bind_all();
                // Check all files after each wake-up, because events may have been lost.
                if rustix::io::retry_on_intr(|| rustix::io::read(&watch, &mut events)).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("covers".into()).spawn(keep).context("a thread")?;
        Ok(())
    }

    fn bind_all(&self) {
        for cover in &self.covers {
            // Ignore errors: the program sees the host's file, and the next event causes another
            // attempt.
            let _ = cover.bind();
        }
    }

    /// Watches the directories of the paths, and the directories of the files that symbolic links
    /// lead to.
    fn watch(&self, watch: &OwnedFd) {
        let ends = self.covers.iter().filter_map(|cover| cover.folder_of_end());
        let changes = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        for folder in ends.chain([PathBuf::from(FOLDER)]) {
            // Ignore errors: a directory that was removed contains no file to cover.
            let _ = inotify::add_watch(watch, &folder, changes);
        }
    }
}

impl Cover {
    /// Binds the file to its path, or to the target of a symbolic link, unless it is already bound
    /// there. Returns false if no file exists at the path.
    fn bind(&self) -> Result<bool, Errno> {
        let own = fstat(&self.file)?;
        match stat(self.path) {
            Ok(there) if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino) => Ok(true),
            Ok(_) => mount_bind(place(&self.file), self.path).map(|()| true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the directory of the target of a symbolic link at the path, even if the target does
    /// not exist.
    fn folder_of_end(&self) -> Option<PathBuf> {
        let end = fs::canonicalize(self.path);
        let end = end.or_else(|_| fs::read_link(self.path).map(|to| Path::new(FOLDER).join(to)));
        end.ok()?.parent().map(Path::to_owned)
    }
}

/// Creates the files in a tmpfs that no path leads to.
fn make(files: &[(&'static str, Vec<u8>)]) -> Result<Vec<Cover>> {
    let here = std::env::current_dir().ok().filter(|here| here.starts_with(FOLDER));
    let open = |path: &str, flags| openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty());
    // Copy the mounts of /etc before mounting the tmpfs. If /etc is a mount point, a later bind
    // mount would contain the tmpfs.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let real = open_tree(CWD, FOLDER, flags).context(FOLDER)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("towpath", FOLDER, "tmpfs", flags, c"mode=755,size=16m").context("mount a tmpfs")?;
    let make = |(path, contents): &(&'static str, Vec<u8>)| {
        fs::write(path, contents).context(*path)?;
        Ok(Cover { path, file: open(path, OFlags::PATH).context(*path)? })
    };
    let covers = files.iter().map(make).collect::<Result<Vec<_>>>().and_then(|covers| {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&real, "", CWD, FOLDER, flags).context("mount /etc again")?;
        Ok(covers)
    });
    if covers.is_err() {
        // Ignore errors: PROGRAM will not start, and no other process sees the mount.
        let _ = unmount(FOLDER, UnmountFlags::DETACH);
    }
    // If the working directory is in /etc, enter it again by its path, because it still refers to
    // the directory below the new mount.
    if let Some(here) = here {
        std::env::set_current_dir(&here).with_context(|| here.display().to_string())?;
    }
    covers
}

fn place(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
