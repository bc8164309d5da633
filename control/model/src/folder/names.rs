//! Unguessable names.

use std::io;

/// Sixteen digits for a name that nobody can take before.
pub fn unguessable() -> io::Result<String> {
    let mut bytes = [0; 8];
    // Up to 256 bytes come whole once the system has started.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// Whether a name of ours is made of what [`unguessable`] gives.
pub fn is_unguessable(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit())
}
