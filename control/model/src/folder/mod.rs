//! Private directories of a user for files of `towpath run`: the preload library and the control
//! sockets.
//!
//! Rules of every [`Folder`]:
//!
//! - Only its owner and root can replace the directory or one of its parents. Its path therefore
//!   always refers to the same directory (`walk`).
//! - Only its owner can write to it. Other users can traverse it, so that their programs can load
//!   the library, but cannot list it.
//! - Its files are opened by descriptor and name, never through a symbolic link. Their modes are
//!   set explicitly, independent of the umask.
//! - Lock files cannot be opened by other users (`lock`).
//!
//! `docs/decisions/0005-a-private-folder.md` explains why a directory is needed. Reading order:
//! `places` (candidates), `walk` (secure path resolution), `private` (the directory), `lock`.

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
