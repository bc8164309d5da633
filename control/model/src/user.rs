//! Users by name and by number.

use nix::unistd::{Uid, User};

use crate::text::printable;

/// Returns the user id of a user's name, or of its number.
#[must_use]
pub fn user_id(user: &str) -> Option<u32> {
    let known = User::from_name(user).ok().flatten().map(|user| user.uid.as_raw());
    // `u32::MAX` is no user for the kernel.
    known.or_else(|| user.parse().ok().filter(|uid| *uid != u32::MAX))
}

/// Returns the name of a user, or its number if the system has no name for it.
#[must_use]
pub fn user_name(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => printable(&user.name),
        _ => uid.to_string(),
    }
}
