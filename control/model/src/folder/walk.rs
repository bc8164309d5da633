//! Secure path resolution using descriptors. Each component is opened without following symbolic
//! links, and then checked through its descriptor. Otherwise another user could replace the
//! component between the check and its use.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, openat, readlinkat};

use super::unfit::Unfit;

/// Maximum number of symbolic links that are followed, as in Linux (MAXSYMLINKS in
/// include/linux/namei.h).
const LINKS_MAX: u32 = 40;

/// Flags for opening a component of a path as a location only, which needs no read permission.
const STEP: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A resolved path: open descriptors of a directory and all its parents, which only `owner` and
/// root can replace.
pub(super) struct Walk {
    root: OwnedFd,
    steps: Vec<(OsString, OwnedFd)>,
    trusted: [u32; 3],
}

impl Walk {
    /// Resolves `path`. Fails unless every directory and symbolic link belongs to root or `owner`,
    /// and no other user can rename the entries of these directories.
    pub(super) fn to(path: &Path, owner: u32) -> Result<Self, Unfit> {
        if !path.is_absolute() {
            // A relative path would depend on the working directory.
            return Err(Unfit::NotPrivate(format!("{} is not an absolute path", path.display())));
        }
        let root = open("/", STEP | OFlags::DIRECTORY, Mode::empty())?;
        // In a user namespace, files of root belong to the overflow user. Trust the owner of `/`,
        // because this user could also replace the C library.
        let trusted = [0, owner, fstat(&root)?.st_uid];
        let mut walk = Self { root, steps: Vec::new(), trusted };
        walk.look("/".as_ref(), &fstat(&walk.root)?)?;
        let mut ahead = reversed(path);
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            let Some(target) = walk.step(&name)? else { continue };
            links += 1;
            if links > LINKS_MAX {
                return Err(rustix::io::Errno::LOOP.into());
            }
            ahead.extend(reversed(&target));
        }
        Ok(walk)
    }

    /// Returns the resolved directory, and its path without symbolic links.
    pub(super) fn finish(mut self) -> (OwnedFd, PathBuf) {
        let path = self.path();
        (self.steps.pop().map_or(self.root, |(_, folder)| folder), path)
    }

    fn path(&self) -> PathBuf {
        let names = self.steps.iter().map(|(name, _)| name.as_os_str());
        [OsStr::new("/")].into_iter().chain(names).collect()
    }

    fn here(&self) -> &OwnedFd {
        self.steps.last().map_or(&self.root, |(_, folder)| folder)
    }

    /// Resolves one component of the path. If it is a symbolic link, returns the link's target.
    fn step(&mut self, name: &OsStr) -> Result<Option<PathBuf>, Unfit> {
        match name.as_bytes() {
            b"/" => self.steps.clear(),
            b".." => drop(self.steps.pop()),
            _ => {
                let next = openat(self.here(), name, STEP, Mode::empty())?;
                let stat = fstat(&next)?;
                let path = self.path().join(name);
                if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                    if !self.trusted.contains(&stat.st_uid) {
                        return Err(Unfit::foreign("the link ", &path, stat.st_uid));
                    }
                    let target = readlinkat(&next, "", Vec::new())?;
                    return Ok(Some(OsString::from_vec(target.into_bytes()).into()));
                }
                self.look(&path, &stat)?;
                self.steps.push((name.to_owned(), next));
            }
        }
        Ok(None)
    }

    /// Checks that no untrusted user can replace entries of a directory. With an access control
    /// list, the group bits are the mask of the list, and set if any entry allows writing.
    fn look(&self, path: &Path, stat: &Stat) -> Result<(), Unfit> {
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(Unfit::NotPrivate(format!("{} is not a folder", path.display())));
        }
        if !self.trusted.contains(&stat.st_uid) {
            return Err(Unfit::foreign("", path, stat.st_uid));
        }
        // Accept a sticky directory: only the owner of an entry can rename it. The owner of the
        // entry is checked in the next step.
        if writable_by_others(stat) && stat.st_mode & Mode::SVTX.bits() == 0 {
            return Err(Unfit::open_to_all(path));
        }
        Ok(())
    }
}

pub(super) fn writable_by_others(stat: &Stat) -> bool {
    stat.st_mode & (Mode::WGRP | Mode::WOTH).bits() != 0
}

/// Returns the components of a path in reverse order.
fn reversed(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    let mut parts: Vec<_> = parts.map(|part| part.as_os_str().to_owned()).collect();
    parts.reverse();
    parts
}

/// Returns a path by which this process can open the file of a descriptor again, even if the file
/// was renamed.
pub(super) fn by_descriptor(fd: &impl std::os::fd::AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}
