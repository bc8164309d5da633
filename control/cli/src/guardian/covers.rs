//! Files of /etc that a run has of its own, bound over those of the host.
//!
//! The kernel takes a mount off a file that the host renames another one over, or unlinks, in all
//! mount namespaces. Network managers do that at each change of a network. So a thread of the
//! guardian watches the folders, and binds the run's file again to what has come in its place.
//!
//! The files are in a tmpfs that is mounted on /etc. The host's /etc is bound on top of it, so that
//! no path leads to the tmpfs. The guardian finds its files by their descriptors:
//!
//! ```text
//!   /etc of the host, bound ◄── a file of the tmpfs is bound to each path
//!   tmpfs "towpath"             (found by descriptors alone)
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

/// Folder of all the files. Every system has it.
const FOLDER: &str = "/etc";
/// Bytes of events that are read at once; their number does not matter.
const EVENTS_LEN: usize = 4096;

/// A file of the run, and its path.
#[derive(Debug)]
struct Cover {
    path: &'static str,
    file: OwnedFd,
}

/// The files of a run that has entered its mount namespace.
#[derive(Debug, Default)]
pub struct Covers {
    covers: Vec<Cover>,
}

impl Covers {
    /// Binds files with these contents over those at their paths in /etc, for all processes of this
    /// mount namespace. Returns them with the paths at which there is no file yet.
    ///
    /// # Errors
    /// The kernel refuses to mount.
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

    /// Keeps the files in place from now on, by a thread that lives as long as this process.
    ///
    /// # Errors
    /// The system gives no thread, or no descriptor to watch the folders with.
    pub fn keep(self) -> Result<()> {
        if self.covers.is_empty() {
            return Ok(());
        }
        let watch = inotify::init(CreateFlags::CLOEXEC).context("inotify")?;
        let keep = move || {
            let mut events = [0; EVENTS_LEN];
            loop {
                // Twice: a file that is replaced before its folder is watched gives no event.
                self.bind_all();
                self.watch(&watch);
                self.bind_all();
                // Events may have been lost, so all files are looked at.
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
            // Where it fails, the program has the host's file, and the next event tries again.
            let _ = cover.bind();
        }
    }

    /// Watches the folders in which the paths, and the ends of links there, are.
    fn watch(&self, watch: &OwnedFd) {
        let ends = self.covers.iter().filter_map(|cover| cover.folder_of_end());
        let changes = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        for folder in ends.chain([PathBuf::from(FOLDER)]) {
            // A folder that has just gone has no file to be covered.
            let _ = inotify::add_watch(watch, &folder, changes);
        }
    }
}

impl Cover {
    /// Binds the file to its path, or to the end of a link there, unless it is there. False: the
    /// path leads to no file.
    fn bind(&self) -> Result<bool, Errno> {
        let own = fstat(&self.file)?;
        match stat(self.path) {
            Ok(there) if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino) => Ok(true),
            Ok(_) => mount_bind(place(&self.file), self.path).map(|()| true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Folder of the file to which a link at the path leads, or would lead if it were there.
    fn folder_of_end(&self) -> Option<PathBuf> {
        let end = fs::canonicalize(self.path);
        let end = end.or_else(|_| fs::read_link(self.path).map(|to| Path::new(FOLDER).join(to)));
        end.ok()?.parent().map(Path::to_owned)
    }
}

/// Makes the files, out of the reach of paths.
fn make(files: &[(&'static str, Vec<u8>)]) -> Result<Vec<Cover>> {
    let here = std::env::current_dir().ok().filter(|here| here.starts_with(FOLDER));
    let open = |path: &str, flags| openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty());
    // A copy of the folder's mounts from before: a bind mount made later would contain the tmpfs,
    // where the folder is a mount itself.
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
        // The program does not start, and nobody else sees the mount.
        let _ = unmount(FOLDER, UnmountFlags::DETACH);
    }
    // A folder that was entered before is below the mounts.
    if let Some(here) = here {
        std::env::set_current_dir(&here).with_context(|| here.display().to_string())?;
    }
    covers
}

fn place(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
