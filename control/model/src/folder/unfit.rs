//! Reasons why a directory cannot be used, with messages for the user.

use std::fmt;
use std::io;
use std::path::Path;

use rustix::io::Errno;

/// Reason why a directory cannot be used.
#[derive(Debug)]
pub enum Unfit {
    /// Another user could change the content of the directory. Contains the message, which names
    /// this user or the path.
    NotPrivate(String),
    /// No shared library can be loaded from it. Contains the predicate of the message.
    NotLoadable(&'static str),
    /// The directory cannot be created, opened or written to.
    Io(io::Error),
}

impl Unfit {
    pub(super) fn foreign(what: &str, path: &Path, owner: u32) -> Self {
        Self::NotPrivate(format!("{what}{} belongs to user {owner}", path.display()))
    }

    pub(super) fn open_to_all(path: &Path) -> Self {
        Self::NotPrivate(format!("{} can be written to by others", path.display()))
    }

    /// Formats the reason as a message about `path`.
    pub(super) fn sentence(&self, path: &Path) -> String {
        match self {
            Self::NotPrivate(why) => why.clone(),
            Self::NotLoadable(why) => format!("{} {why}", path.display()),
            Self::Io(error) => format!("{}: {error}", path.display()),
        }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPrivate(why) => f.write_str(why),
            Self::NotLoadable(why) => f.write_str(why),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for Unfit {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for Unfit {
    fn from(errno: Errno) -> Self {
        Self::Io(io::Error::from(errno))
    }
}
