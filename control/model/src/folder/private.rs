//! A folder that is its owner's alone, and what is done in it: all by descriptor and name.

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

/// A folder that nobody but its owner and root can write to or replace.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    path: PathBuf,
    owner: u32,
}

/// Other users pass through it and do not list it.
const FOLDER_MODE: Mode = Mode::RWXU.union(Mode::XGRP).union(Mode::XOTH);
/// The library is for every user's programs to load.
pub const FOR_ALL: Mode = Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP).union(Mode::ROTH);
/// Everything else.
pub const FOR_OWNER: Mode = Mode::RUSR.union(Mode::WUSR);

/// No name in a folder leads elsewhere, no file is waited for, and no program gets it.
pub(super) const OPEN: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

impl Folder {
    /// The folder `path` of the user `owner`, which exists.
    pub fn open(path: &Path, owner: u32) -> Result<Self, Unfit> {
        let (place, path) = Walk::to(path, owner)?.finish();
        let fd = openat(&place, ".", OFlags::RDONLY | OFlags::DIRECTORY | OPEN, Mode::empty())?;
        let stat = fstat(&fd)?;
        if stat.st_uid != owner {
            return Err(Unfit::foreign("", &path, stat.st_uid));
        }
        // The sticky bit does not help here: what others add would be found.
        if writable_by_others(&stat) {
            return Err(Unfit::open_to_all(&path));
        }
        Ok(Self { fd, path, owner })
    }

    /// The folder `path` of this user, which is made if it does not exist.
    pub fn make(path: &Path) -> Result<Self, Unfit> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::INVAL.into());
        };
        let owner = geteuid().as_raw();
        let (place, real) = Walk::to(parent, owner)?.finish();
        match mkdirat(&place, name, FOLDER_MODE) {
            Ok(()) | Err(Errno::EXIST) => {}
            // On a file system without write permission the folder may be there nevertheless.
            Err(error) => return Self::open(&real.join(name), owner).map_err(|_| error.into()),
        }
        // The umask may have closed it so far that it cannot be opened.
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

    /// Where it is: a path without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same once more.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, path: self.path.clone(), owner: self.owner })
    }

    /// Whom it belongs to.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// `Err` when programs cannot load a library from here.
    pub fn check_execution(&self) -> Result<(), Unfit> {
        if self.path.as_os_str().as_bytes().iter().any(|b| b":; $".contains(b)) {
            return Err(Unfit::NotLoadable("has a character in it that ends a path in LD_PRELOAD"));
        }
        if fstatvfs(&self.fd)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Err(Unfit::NotLoadable("is mounted noexec"));
        }
        Ok(())
    }

    /// The names in it, 4096 at most: root looks into other users' folders.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let entries = Dir::read_from(&self.fd)?.take(NAMES_MAX);
        let names =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned));
        Ok(names.collect())
    }

    /// The content of a file of the owner's that nobody else can write to; at most one byte more
    /// than `max`.
    pub fn read(&self, name: &str, max: usize) -> io::Result<Vec<u8>> {
        let fd = openat(&self.fd, name, OFlags::RDONLY | OPEN, Mode::empty())?;
        if !is_file_of(&fstat(&fd)?, self.owner) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut content = Vec::new();
        File::from(fd).take(max as u64 + 1).read_to_end(&mut content)?;
        Ok(content)
    }

    /// Makes a file by writing another one and renaming it: nobody ever sees half of it.
    pub fn replace(&self, name: &str, content: &[u8], mode: Mode) -> io::Result<()> {
        let temporary = format!("{name}.{}", unguessable()?);
        let result = self
            .write_new(&temporary, content, mode)
            .and_then(|()| Ok(renameat(&self.fd, &temporary, &self.fd, name)?));
        if result.is_err() {
            // Best effort: the first error is the one to tell.
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

    /// Gives a file another name.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Sets the mode of a file that this process has just made here.
    pub fn set_mode(&self, name: &str, mode: Mode) -> io::Result<()> {
        Ok(chmodat(&self.fd, name, mode, AtFlags::empty())?)
    }

    /// Removes a file if it is there. Best effort: it only takes up room.
    pub fn remove(&self, name: &str) {
        let _ = unlinkat(&self.fd, name, AtFlags::empty());
    }

    /// A socket of the owner's, without connecting to it.
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

    /// The path that leads this process, and no other, to `name` in the folder itself. Short enough
    /// for the address of a socket (108 bytes, unix(7)) wherever the folder is.
    pub fn own_path(&self, name: &str) -> PathBuf {
        by_descriptor(&self.fd).join(name)
    }
}

/// See [`Folder::own_path`]; of something that is open.
pub fn own_path_of(fd: &OwnedFd) -> PathBuf {
    by_descriptor(fd)
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Entries of a folder that are looked at. A run has two, and a version of the library has two.
const NAMES_MAX: usize = 4096;

fn is_folder_of(stat: &Stat, owner: u32) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_uid == owner
}

pub(super) fn is_file_of(stat: &Stat, owner: u32) -> bool {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_file && stat.st_uid == owner && !writable_by_others(stat)
}
