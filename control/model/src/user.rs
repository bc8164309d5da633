//! Conversion between user names and user ids.

use nix::unistd::{Uid, User};

use crate::text::printable;

/// Returns the id of a user given by name or by number.
#[must_use]
pub fn user_id(user: &str) -> Option<u32> {
    let known = User::from_name(user).ok().flatten().map(|user| user.uid.as_raw());
    // `u32::MAX` (-1) is no valid user id.
    known.or_else(|| user.parse().ok().filter(|uid| *uid != u32::MAX))
}

/// Returns the name of a user, or the user id as text if the system has no name for it.
#[must_use]
pub fn user_name(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => printable(&user.name),
        _ => uid.to_string(),
    }
}
