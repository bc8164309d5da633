//! A server on lwIP: `lwip-server DEVICE ADDRESS/LENGTH PORT`.
//!
//! DEVICE is a TAP device that is up. The server provides the service of lab/load/src/serve.rs on
//! one thread, in callbacks of lwIP's raw API (`server.c`).

use std::error::Error;
use std::ffi::{CString, c_char, c_int};
use std::net::Ipv4Addr;

unsafe extern "C" {
    /// Serves until the process is killed. Addresses are in network byte order; the device's name
    /// ends with a NUL. Prints failures to standard error.
    fn serve(device: *const c_char, address: u32, mask: u32, port: u16) -> c_int;
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [device, address, port] = &words[..] else {
        return Err("usage: lwip-server DEVICE ADDRESS/LENGTH PORT".into());
    };
    let (address, length) = address.split_once('/').ok_or("an address with its length")?;
    let (address, length): (Ipv4Addr, u32) = (address.parse()?, length.parse()?);
    let host_bits = 32_u32.checked_sub(length).ok_or("a length of at most 32")?;
    let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0).to_be();
    let (device, port) = (CString::new(device.as_str())?, port.parse()?);
    let address = u32::from(address).to_be();
    // SAFETY: the name ends with a NUL byte, and lives until the call returns.
    let failed = unsafe { serve(device.as_ptr(), address, mask, port) };
    std::process::exit(failed)
}
