//! A directory that is private to its owner. Its files are accessed by the directory's descriptor
//! and their names.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, StatVfsMountFlags, chmodat, fchmod, fstat,
    fstatvfs, mkdirat, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::names::unguessable;
use super::unfit::Unfit;
use super::walk::{Walk, by_descriptor, writable_by_others};

/// A directory that only its owner and root can write to or replace.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    path: PathBuf,
    owner: u32,
}

/// Mode of private directories: other users can traverse them, but not list them.
const FOLDER_MODE: Mode = Mode::RWXU.union(Mode::XGRP).union(Mode::XOTH);
/// Mode of the preload library, which programs of all users must be able to read.
pub const FOR_ALL: Mode = Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP).union(Mode::ROTH);
/// Mode of all files except the preload library: only the owner can read and write.
pub const FOR_OWNER: Mode = Mode::RUSR.union(Mode::WUSR);

/// Flags for opening files: do not follow symbolic links, do not block, and close on exec.
pub(super) const OPEN: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

impl Folder {
    /// Opens the existing private directory `path` of user `owner`.
    pub fn open(path: &Path, owner: u32) -> Result<Self, Unfit> {
        let (place, path) = Walk::to(path, owner)?.finish();
        let fd = openat(&place, ".", OFlags::RDONLY | OFlags::DIRECTORY | OPEN, Mode::empty())?;
        let stat = fstat(&fd)?;
        if stat.st_uid != owner {
            return Err(Unfit::foreign("", &path, stat.st_uid));
        }
        // Reject a directory with the sticky bit, too: other users could create files in it, and we
        // would open them by their names.
        if writable_by_others(&stat) {
            return Err(Unfit::open_to_all(&path));
        }
        Ok(Self { fd, path, owner })
    }

    /// Opens the private directory `path` of this user. Creates it if it does not exist.
    pub fn make(path: &Path) -> Result<Self, Unfit> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::INVAL.into());
        };
        let owner = geteuid().as_raw();
        let (place, real) = Walk::to(parent, owner)?.finish();
        match mkdirat(&place, name, FOLDER_MODE) {
            Ok(()) | Err(Errno::EXIST) => {}
            // Try to open the directory even if it cannot be created, because it may exist on a
            // read-only file system.
            Err(error) => return Self::open(&real.join(name), owner).map_err(|_| error.into()),
        }
        // Set the mode: a restrictive umask may have made the directory inaccessible even to its
        // owner.
        let stat = rustix::fs::statat(&place, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if is_folder_of(&stat, owner) && stat.st_mode & Mode::RWXU.bits() != Mode::RWXU.bits() {
            chmodat(&place, name, FOLDER_MODE, AtFlags::empty())?;
        }
        let folder = Self::open(&real.join(name), owner)?;
        if fstat(&folder.fd)?.st_mode & 0o7777 != FOLDER_MODE.bits() {
            fchmod(&folder.fd, FOLDER_MODE)?;
        }
        Ok(folder)
    }

    /// Returns the path of the directory, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Duplicates the directory's descriptor.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, path: self.path.clone(), owner: self.owner })
    }

    /// Returns the user id of the directory's owner.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Fails if programs cannot load a shared library from this directory.
    pub fn check_execution(&self) -> Result<(), Unfit> {
        if self.path.as_os_str().as_bytes().iter().any(|b| b":; $".contains(b)) {
            return Err(Unfit::NotLoadable("has a character in it that ends a path in LD_PRELOAD"));
        }
        if fstatvfs(&self.fd)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Err(Unfit::NotLoadable("is mounted noexec"));
        }
        Ok(())
    }

    /// Returns at most 4096 names of files in the directory. The number is limited because root
    /// reads directories that other users fill.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let entries = Dir::read_from(&self.fd)?.take(NAMES_MAX);
        let names =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned));
        Ok(names.collect())
    }

    /// Reads a file. Fails unless the directory's owner owns it, and only the owner can write to
    /// it. Returns at most `max` + 1 bytes.
    pub fn read(&self, name: &str, max: usize) -> io::Result<Vec<u8>> {
        let fd = openat(&self.fd, name, OFlags::RDONLY | OPEN, Mode::empty())?;
        if !is_file_of(&fstat(&fd)?, self.owner) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut content = Vec::new();
        File::from(fd).take(max as u64 + 1).read_to_end(&mut content)?;
        Ok(content)
    }

    /// Replaces a file atomically, by writing a temporary file and renaming it.
    pub fn replace(&self, name: &str, content: &[u8], mode: Mode) -> io::Result<()> {
        let temporary = format!("{name}.{}", unguessable()?);
        let result = self
            .write_new(&temporary, content, mode)
            .and_then(|()| Ok(renameat(&self.fd, &temporary, &self.fd, name)?));
        if result.is_err() {
            // Remove the temporary file. Ignore errors, because the first error is the one to
            // report.
            self.remove(&temporary);
        }
        result
    }

    fn write_new(&self, name: &str, content: &[u8], mode: Mode) -> io::Result<()> {
        let fd =
            openat(&self.fd, name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OPEN, mode)?;
        fchmod(&fd, mode)?;
        File::from(fd).write_all(content)
    }

    /// Renames a file.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Sets the mode of a file in the directory, which this process has just created.
    pub fn set_mode(&self, name: &str, mode: Mode) -> io::Result<()> {
        Ok(chmodat(&self.fd, name, mode, AtFlags::empty())?)
    }

    /// Removes a file if it exists. Ignores errors, because a remaining file only occupies space.
    pub fn remove(&self, name: &str) {
        let _ = unlinkat(&self.fd, name, AtFlags::empty());
    }

    /// Opens a socket file of the owner without connecting to it (O_PATH).
    pub fn socket(&self, name: &str) -> io::Result<OwnedFd> {
        let fd = openat(
            &self.fd,
            name,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let stat = fstat(&fd)?;
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        if !is_socket || stat.st_uid != self.owner {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(fd)
    }

    /// Returns a path to the file `name` that is valid only in this process. Unlike the directory's
    /// path, it is always short enough for a socket address (108 bytes, unix(7)).
    pub fn own_path(&self, name: &str) -> PathBuf {
        by_descriptor(&self.fd).join(name)
    }
}

/// Returns a path to an open file that is valid only in this process.
pub fn own_path_of(fd: &OwnedFd) -> PathBuf {
    by_descriptor(fd)
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Maximum number of entries read from a directory. Each run has two files, and each version of the
/// preload library has two.
const NAMES_MAX: usize = 4096;

fn is_folder_of(stat: &Stat, owner: u32) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_uid == owner
}

pub(super) fn is_file_of(stat: &Stat, owner: u32) -> bool {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_file && stat.st_uid == owner && !writable_by_others(stat)
}
