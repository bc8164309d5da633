//! Folders that are this user's alone, for what lives as long as a run: the preload library, which is
//! loaded into programs, and the sockets of `towpath ss`.
//!
//! What holds for every [`Folder`]:
//!
//! - Nobody but its owner and root can replace it or a folder above it, so that its path leads to it
//!   for as long as programs may use that path ([`walk`]).
//! - Nobody but its owner can write into it. Others can pass through it, so that children of another
//!   user find the library, but not list it.
//! - Its files are opened by descriptor and name, never through a link, and their modes are set, not
//!   left to the umask.
//! - What is locked is a file that strangers cannot open ([`lock`]).
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
pub use places::{Refusal, existing, first_that};
pub use private::{FOR_ALL, FOR_OWNER, Folder, own_path_of};
pub use unfit::Unfit;

#[cfg(test)]
mod tests;
