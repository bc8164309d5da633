//! Random bytes of the host, for secrets and Ethernet addresses.

use crate::plan_error::{Result, system};

/// Returns 32 unpredictable bytes, for the secrets of a stack.
///
/// # Errors
/// See getrandom(2).
pub fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    // Requests of up to 256 bytes are never cut once the system has started.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| system("get random bytes")(errno.into()))?;
    Ok(bytes)
}

/// Returns an Ethernet address that no other host is likely to have: 02 is locally administered,
/// unicast.
pub(crate) fn random_mac() -> Result<[u8; 6]> {
    let [a, b, c, d, e, ..] = random()?;
    Ok([0x02, a, b, c, d, e])
}
