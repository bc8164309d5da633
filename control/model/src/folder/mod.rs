//! Folders that are this user's alone, for things that live as long as a run: the preload library
//! and the sockets of runs.
//!
//! Rules of every [`Folder`]:
//!
//! - Only its owner and root can replace the folder or one above it. Its path leads to it for as
//!   long as programs may use that path (`walk`).
//! - Only its owner can write into it. Other users can pass through it, so that their programs find
//!   the library, but not list it.
//! - Its files are opened by descriptor and name, never through a link. Their modes are set, not
//!   left to the umask.
//! - A lock is on a file that strangers cannot open (`lock`).
//!
//! `docs/decisions/0005-a-private-folder.md` says why there is a folder at all. Reading order:
//! `places` (which folders), `walk` (the way to one), `private` (the folder), `lock`.

mod lock;
mod names;
mod places;
mod private;
mod unfit;
mod walk;

pub use lock::Lock;
pub use names::{is_unguessable, unguessable};
pub use places::{Refusal, first_that, of_user, other_users};
pub use private::{FOR_ALL, FOR_OWNER, Folder, own_path_of};
pub use unfit::Unfit;

#[cfg(test)]
mod tests;
