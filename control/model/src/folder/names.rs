//! Random file names.

use std::io;

/// Returns 16 random hexadecimal digits, for a name that no other user can create in advance.
pub fn unguessable() -> io::Result<String> {
    let mut bytes = [0; 8];
    // getrandom(2) always fills requests of up to 256 bytes once the system has started.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// Returns whether a text has the format of [`unguessable`].
pub fn is_unguessable(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit())
}
