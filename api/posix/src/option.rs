//! Implements getsockopt(2) and setsockopt(2). A table defines how each option is handled.

mod filter;
mod form;
mod place;
pub(crate) mod remembered;
mod table;
mod tcp;
mod value;

use std::sync::atomic::Ordering::Relaxed;

use towpath_shm::control::DATA_MAX;
use towpath_shm::layout::Kind;

use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::{Errno, Posix, Result, address};

use form::{check_range, int, int_of, wants_a_byte};
use place::{engine_get, engine_set, set_bit};
pub use table::{Effect, OPTIONS, OptionRow};
use value::{get_special, set_special};

/// Implements getsockopt(2).
///
/// # Safety
/// `value` must point to `*len` writable bytes.
pub unsafe fn getsockopt(
    posix: &'static Posix,
    fd: i32,
    level: i32,
    name: i32,
    value: *mut libc::c_void,
    len: *mut libc::socklen_t,
) -> Result<()> {
    let handle = OpenSocket::new(posix, fd)?;
    let is_filter = (level, name) == (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    if len.is_null() || value.is_null() && !is_filter {
        return fail(libc::EFAULT);
    }
    // SAFETY: `len` is not null, and points to a valid length.
    let room = unsafe { *len };
    if room as i32 <= -1 {
        return fail(libc::EINVAL);
    }
    if is_filter {
        // SAFETY: `value` has room for `*len` instructions, because the length of SO_GET_FILTER is
        // a number of instructions.
        unsafe { *len = filter::get(&handle, value.cast(), room)? };
        return Ok(());
    }
    let option = find(&handle, level, name).map_err(|errno| foreign(&handle, level, errno))?;
    if (level, name) == (libc::IPPROTO_TCP, table::TCP_SAVED_SYN) {
        let (syn, needed) = tcp::saved_syn(&handle, room)?;
        // SAFETY: `value` has room for `room` bytes, and the engine returns at most as many.
        unsafe {
            std::ptr::copy_nonoverlapping(syn.as_ptr(), value.cast(), syn.len());
            *len = if needed == 0 { syn.len() as libc::socklen_t } else { needed };
        }
        return if needed == 0 { Ok(()) } else { fail(libc::EINVAL) };
    }
    let bytes = form::fit(level, name, value_of(&handle, option)?, room)?;
    let n = bytes.len().min(room as usize);
    // SAFETY: `value` has room for `room` bytes, and `n` is at most `room`.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), n);
        *len = n as libc::socklen_t;
    }
    Ok(())
}

/// Returns the full value of an option, not yet truncated to the program's buffer.
fn value_of(handle: &OpenSocket, option: &OptionRow) -> Result<Vec<u8>> {
    let OptionRow { level, name, .. } = *option;
    Ok(match option.effect {
        Effect::Bit { bit, .. } => int(i32::from(handle.slot.option_bits.load(Relaxed) & bit != 0)),
        Effect::Told { default, .. } | Effect::Kept { default, .. } => {
            int(handle.remembered(level, name).unwrap_or(default))
        }
        Effect::Asked { default, default_v6 } => {
            let is_v4 = handle.slot.family.load(Relaxed) == address::INET;
            let default = if is_v4 { default } else { default_v6 };
            int(handle.remembered(level, name).unwrap_or(default))
        }
        Effect::Only { value, .. } => int(value),
        Effect::Engine => engine_get(handle, level, name)?,
        Effect::EngineSet => return fail(libc::ENOPROTOOPT),
        Effect::Special => get_special(handle, level, name)?,
        Effect::Refused { errno } => return fail(errno),
    })
}

/// Implements setsockopt(2).
///
/// # Safety
/// `value` must point to `len` readable bytes.
pub unsafe fn setsockopt(
    posix: &'static Posix,
    fd: i32,
    level: i32,
    name: i32,
    value: *const libc::c_void,
    len: libc::socklen_t,
) -> Result<()> {
    let handle = OpenSocket::new(posix, fd)?;
    if handle.is_tcp() {
        refuse_to_stream(level, name)?;
    }
    let option = find(&handle, level, name)?;
    // SAFETY: `value` points to `len` readable bytes, by the contract of this function.
    let bytes = unsafe { value_at(value, len) }?;
    if bytes.is_empty() && wants_a_byte(level, name) {
        return fail(libc::EINVAL);
    }
    match option.effect {
        Effect::Engine | Effect::EngineSet => engine_set(&handle, level, name, bytes),
        Effect::Asked { .. } => {
            let value = int_of(level, bytes)?;
            engine_set(&handle, level, name, &value.to_ne_bytes())?;
            handle.remember(level, name, value);
            Ok(())
        }
        Effect::Special => {
            let _inside = handle.socket.enter(handle.client)?;
            set_special(&handle, level, name, bytes)
        }
        Effect::Refused { errno } => fail(errno),
        Effect::Bit { bit, setting } => {
            let on = int_of(level, bytes)? != 0;
            let _inside = handle.socket.enter(handle.client)?;
            set_bit(&handle, bit, on);
            if setting != 0 {
                handle.client.setting(handle.socket, setting, u64::from(on));
            }
            Ok(())
        }
        Effect::Told { setting, range: (least, most), .. } => {
            let value = int_of(level, bytes)?;
            check_range(value, least, most)?;
            handle.remember(level, name, value);
            handle.client.setting(handle.socket, setting, value as u64);
            Ok(())
        }
        Effect::Kept { range: (least, most), .. } => {
            let value = int_of(level, bytes)?;
            check_range(value, least, most)?;
            handle.remember(level, name, value);
            Ok(())
        }
        Effect::Only { value, otherwise } => {
            if int_of(level, bytes)? == value {
                Ok(())
            } else {
                fail(otherwise)
            }
        }
    }
}

/// Returns the bytes of an option value that a program passed.
///
/// # Safety
/// `value` must point to `len` readable bytes, which outlive the result, or be null.
unsafe fn value_at<'a>(value: *const libc::c_void, len: libc::socklen_t) -> Result<&'a [u8]> {
    match len as usize {
        len if len > DATA_MAX => fail(libc::EINVAL),
        0 if value.is_null() => Ok(&[]),
        _ if value.is_null() => fail(libc::EFAULT),
        // SAFETY: `value` is not null, and points to `len` readable bytes.
        len => Ok(unsafe { std::slice::from_raw_parts(value.cast(), len) }),
    }
}

fn find(handle: &OpenSocket, level: i32, name: i32) -> Result<&'static OptionRow> {
    let fits = match level {
        libc::IPPROTO_TCP => handle.is_tcp(),
        libc::IPPROTO_UDP => handle.kind() == Kind::Datagram,
        libc::IPPROTO_IPV6 => handle.slot.family.load(Relaxed) == address::INET6,
        libc::SOL_SOCKET | libc::IPPROTO_IP => true,
        _ => false,
    };
    if !fits {
        return fail(libc::ENOPROTOOPT);
    }
    match OPTIONS.iter().find(|option| option.level == level && option.name == name) {
        Some(option) => Ok(option),
        None => fail(libc::ENOPROTOOPT),
    }
}

/// Fails with Linux's error if a program sets a multicast option on a stream socket.
fn refuse_to_stream(level: i32, name: i32) -> Result<()> {
    use libc::{IPPROTO_IP, IPPROTO_IPV6};
    match (level, name) {
        (IPPROTO_IP, libc::IP_ADD_MEMBERSHIP | libc::IP_DROP_MEMBERSHIP)
        | (IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP | libc::IPV6_DROP_MEMBERSHIP) => {
            fail(libc::EPROTO)
        }
        (IPPROTO_IP, libc::IP_MULTICAST_IF | libc::IP_MULTICAST_TTL) => fail(libc::EINVAL),
        (IPPROTO_IPV6, libc::IPV6_MULTICAST_IF | libc::IPV6_MULTICAST_HOPS) => {
            fail(libc::ENOPROTOOPT)
        }
        _ => Ok(()),
    }
}

/// Returns the errno for an option at a level that the socket does not support. For levels of other
/// protocols, Linux returns EOPNOTSUPP from getsockopt(2), but ENOPROTOOPT from setsockopt(2).
fn foreign(handle: &OpenSocket, level: i32, errno: Errno) -> Errno {
    let own = if handle.is_tcp() { libc::IPPROTO_TCP } else { libc::IPPROTO_UDP };
    let is_v4 = handle.slot.family.load(Relaxed) == address::INET;
    if is_v4 && ![libc::SOL_SOCKET, libc::IPPROTO_IP, own].contains(&level) {
        Errno(libc::EOPNOTSUPP)
    } else {
        errno
    }
}
