//! Directories that may be used for the files of runs, in order of preference.
//!
//! | for | folders |
//! |---|---|
//! | root | /run/towpath; /var/lib/towpath, since many systems mount /run noexec; /tmp/towpath-0 |
//! | others | $XDG_RUNTIME_DIR/towpath, /tmp/towpath-UID |
//! | all | /tmp/towpath-UID-RANDOM, if another user has taken that name |
//!
//! Root does not use XDG_RUNTIME_DIR, because root's programs may change to other users, who cannot
//! access it. After `su` or `sudo -E` the variable names another user's directory.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::names::{is_unguessable, unguessable};
use super::private::Folder;
use super::unfit::Unfit;

const TEMPORARY: &str = "/tmp";
const OF_ROOT: [&str; 2] = ["/run/towpath", "/var/lib/towpath"];
const RUNTIME_DIRS: &str = "/run/user";
const NAME: &str = "towpath";
const VARIABLE: &str = "XDG_RUNTIME_DIR";

/// Maximum number of directories of a user, with fixed or random names, that are searched for runs.
const FOLDERS_MAX: usize = 8;

/// A directory that cannot be used, with the reason.
#[derive(Debug)]
pub struct Refusal {
    /// Path of the directory, or the value of the environment variable that names it.
    path: PathBuf,
    from_variable: bool,
    why: Unfit,
}

impl Refusal {
    /// Returns whether the user is informed about this directory although another one can be used.
    /// True if the user has named the directory by an environment variable, or if another user
    /// controls it.
    pub fn is_notable(&self) -> bool {
        self.from_variable || matches!(self.why, Unfit::NotPrivate(_))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.from_variable {
            write!(f, "{VARIABLE} is not used: ")?;
        }
        f.write_str(&self.why.sentence(&self.path))
    }
}

/// Calls `with` for possible directories of this user, in order of preference, until a call
/// succeeds. Returns its result, and the directories that were rejected before. Creates missing
/// directories.
pub fn first_that<T>(
    mut with: impl FnMut(&Folder) -> Result<T, Unfit>,
) -> Result<(T, Vec<Refusal>), Vec<Refusal>> {
    let mut refusals = Vec::new();
    let mut offer = |path: PathBuf, variable: Option<PathBuf>| {
        let from_variable = variable.is_some();
        match Folder::make(&path).and_then(|folder| with(&folder)) {
            Ok(found) => Some(found),
            Err(why) => {
                refusals.push(Refusal { path: variable.unwrap_or(path), from_variable, why });
                None
            }
        }
    };
    let uid = geteuid().as_raw();
    let variable = runtime_dir(uid);
    let in_variable = variable.map(|dir| (dir.join(NAME), Some(dir)));
    let fixed = fixed(uid).into_iter().map(|path| (path, None));
    // Also try directories with random names. Earlier runs have created them because another user
    // owned the fixed name.
    let instead = || made_instead(uid).into_iter().chain(new_name(uid)).map(|path| (path, None));
    let mut all =
        in_variable.into_iter().chain(fixed).chain(std::iter::once_with(instead).flatten());
    match all.find_map(|(path, variable)| offer(path, variable)) {
        Some(found) => Ok((found, refusals)),
        None => Err(refusals),
    }
}

/// Returns the existing directories of user `owner` that may contain control sockets of runs. Only
/// root gets those of another user.
pub fn of_user(owner: u32) -> Vec<Folder> {
    let uid = geteuid().as_raw();
    let runtime = match owner == uid {
        true => runtime_dir(uid),
        false if owner == 0 => None,
        false => Some(Path::new(RUNTIME_DIRS).join(owner.to_string())),
    };
    let runtime = runtime.map(|dir| dir.join(NAME));
    let paths = runtime.into_iter().chain(fixed(owner)).chain(made_instead(owner));
    // Skip directories that do not exist, or that other users control.
    let folders = paths.take(FOLDERS_MAX).filter_map(|path| Folder::open(&path, owner).ok());
    folders.collect()
}

/// Returns other users that may have runs, by the names of existing directories. Returns none
/// unless this user is root.
pub fn other_users() -> Vec<u32> {
    let uid = geteuid().as_raw();
    if uid == 0 { others() } else { Vec::new() }
}

/// Returns the value of XDG_RUNTIME_DIR if this user may use it.
fn runtime_dir(uid: u32) -> Option<PathBuf> {
    let value = std::env::var_os(VARIABLE).filter(|value| uid != 0 && !value.is_empty())?;
    Some(value.into())
}

fn fixed(uid: u32) -> Vec<PathBuf> {
    let of_root = OF_ROOT.iter().filter(|_| uid == 0).map(PathBuf::from);
    of_root.chain([Path::new(TEMPORARY).join(format!("{NAME}-{uid}"))]).collect()
}

fn new_name(uid: u32) -> Option<PathBuf> {
    Some(Path::new(TEMPORARY).join(format!("{NAME}-{uid}-{}", unguessable().ok()?)))
}

/// Returns the existing directories with random names of user `uid`, in a fixed order.
fn made_instead(uid: u32) -> Vec<PathBuf> {
    let prefix = format!("{NAME}-{uid}-");
    let mut out: Vec<_> = names(TEMPORARY)
        .filter(|name| name.strip_prefix(&prefix).is_some_and(is_unguessable))
        .map(|name| Path::new(TEMPORARY).join(name))
        .collect();
    // Keep only directories that this user owns. Other users can create many such names, which
    // would otherwise exhaust the limit on directories.
    out.retain(|path| Folder::open(path, uid).is_ok());
    out.sort();
    out
}

/// Returns the users whose ids are part of directory names, if they own the directories.
fn others() -> Vec<u32> {
    let in_temporary = names(TEMPORARY).filter_map(|name| {
        let rest = name.strip_prefix(NAME)?.strip_prefix('-')?;
        let uid: u32 = rest.split('-').next()?.parse().ok()?;
        // Check the owner. Any user can create thousands of such names, and each user that this
        // function returns costs a search.
        let path = Path::new(TEMPORARY).join(&name);
        let owner = std::fs::symlink_metadata(path).ok()?.uid();
        (owner == uid).then_some(uid)
    });
    let in_runtime = names(RUNTIME_DIRS).filter_map(|name| name.parse().ok());
    let mut uids: Vec<u32> = in_temporary.chain(in_runtime).filter(|uid| *uid != 0).collect();
    uids.sort_unstable();
    uids.dedup();
    uids
}

/// Returns the names of the entries in a directory. Any user may have created them.
fn names(folder: &str) -> impl Iterator<Item = String> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_another_user_made_names_no_user() {
        let uid = u32::MAX - 1 - std::process::id();
        let path = Path::new(TEMPORARY).join(format!("{NAME}-{uid}"));
        std::fs::create_dir(&path).unwrap();
        let found = others();
        std::fs::remove_dir(&path).unwrap();
        assert!(!found.contains(&uid));
    }
}
