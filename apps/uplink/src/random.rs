//! Random bytes from the kernel, for secrets and Ethernet addresses.

use crate::plan_error::{Result, system};

/// Returns 32 unpredictable bytes for the secrets of a stack.
///
/// # Errors
/// Returns the error of getrandom(2).
pub fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    // getrandom(2) always fills requests of up to 256 bytes once the kernel's generator is
    // initialized.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| system("get random bytes")(errno.into()))?;
    Ok(bytes)
}

/// Returns a random Ethernet address. The first byte, 02, marks it as locally administered and
/// unicast.
pub(crate) fn random_mac() -> Result<[u8; 6]> {
    let [a, b, c, d, e, ..] = random()?;
    Ok([0x02, a, b, c, d, e])
}
