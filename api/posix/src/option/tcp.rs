//! Options of the level IPPROTO_TCP that are implemented by their own code, because no `Effect` of
//! the option table describes them.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use towpath_shm::layout::{Kind, flags, option_bit, setting};

use super::form::{check_range, int, or};
use super::place::{engine_get, engine_get_part, engine_set, set_bit};
use super::table::{TCP_SAVED_SYN, TCP_ULP};
use crate::Result;
use crate::errno::fail;
use crate::handle::OpenSocket;

/// Minimum of TCP_WINDOW_CLAMP in bytes: SOCK_MIN_RCVBUF / 2.
const CLAMP_MIN: i32 = 1152;
const MSS_MIN: i32 = 88;
const MSS_MAX: i32 = 32767;
/// Default of TCP_LINGER2 in seconds (net.ipv4.tcp_fin_timeout). [`LINGER2_MAX`] is its maximum
/// (TCP_FIN_TIMEOUT_MAX).
const LINGER2_DEFAULT: i32 = 60;
const LINGER2_MAX: i32 = 120;
/// Maximum interval in seconds between SYN-ACK retransmissions (TCP_RTO_MAX). TCP_DEFER_ACCEPT
/// limits the number of these retransmissions.
const RTO_MAX_S: i32 = 120;
/// Maximum number of SYN-ACK retransmissions that TCP_DEFER_ACCEPT can set.
const REPETITIONS_MAX: u32 = 255;

/// Implements getsockopt(2) for the TCP options that have their own code.
pub(super) fn get(handle: &OpenSocket, name: i32) -> Result<Vec<u8>> {
    let slot = handle.slot;
    let level = libc::IPPROTO_TCP;
    let set_before = |default| int(handle.remembered(level, name).unwrap_or(default));
    Ok(match name {
        TCP_ULP => Vec::new(),
        libc::TCP_QUICKACK if handle.is_connected() => engine_get(handle, level, name)?,
        libc::TCP_QUICKACK => set_before(1),
        libc::TCP_WINDOW_CLAMP => {
            match handle.remembered(level, name) {
                Some(asked @ 1..) => int(asked),
                // If the program has not set a value, the engine returns the current limit of the
                // connection.
                _ if handle.is_connected() => engine_get(handle, level, name)?,
                _ => int(0),
            }
        }
        libc::TCP_MAXSEG => {
            match handle.remembered(level, name) {
                // If the socket is not connected, return the value that the program has set.
                Some(asked @ 1..) if !handle.is_connected() => int(asked),
                _ => engine_get(handle, level, name)?,
            }
        }
        libc::TCP_KEEPIDLE => or(slot.keepidle.load(Relaxed), 7200),
        libc::TCP_KEEPINTVL => or(slot.keepintvl.load(Relaxed), 75),
        libc::TCP_KEEPCNT => or(slot.keepcnt.load(Relaxed).into(), 9),
        libc::TCP_DEFER_ACCEPT | libc::TCP_FASTOPEN_CONNECT => set_before(0),
        libc::TCP_LINGER2 => set_before(LINGER2_DEFAULT),
        libc::TCP_NOTSENT_LOWAT => int(slot.notsent_lowat.load(Relaxed) as i32),
        libc::TCP_USER_TIMEOUT => int(slot.user_timeout_ms.load(Relaxed) as i32),
        _ => return fail(libc::ENOPROTOOPT),
    })
}

/// Implements setsockopt(2) for the TCP options that have their own code.
pub(super) fn set(handle: &OpenSocket, name: i32, value: i32) -> Result<()> {
    let slot = handle.slot;
    let tell = |setting, value: i32| handle.client.setting(handle.socket, setting, value as u64);
    match name {
        libc::TCP_MAXSEG => {
            if value != 0 {
                check_range(value, MSS_MIN, MSS_MAX)?;
            }
            handle.remember(libc::IPPROTO_TCP, name, value);
            tell(setting::MAXSEG, value);
            Ok(())
        }
        libc::TCP_QUICKACK => {
            handle.remember(libc::IPPROTO_TCP, name, i32::from(value != 0));
            tell(setting::QUICKACK, i32::from(value != 0));
            Ok(())
        }
        libc::TCP_WINDOW_CLAMP => {
            // As on Linux, 0 (no window clamp) is accepted only before the socket is connected.
            if value == 0 && handle.is_connected() {
                return fail(libc::EINVAL);
            }
            let value = if value == 0 { 0 } else { value.max(CLAMP_MIN) };
            handle.remember(libc::IPPROTO_TCP, name, value);
            tell(setting::WINDOW_CLAMP, value);
            Ok(())
        }
        libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT => {
            set_keepalive(handle, name, value)
        }
        libc::TCP_USER_TIMEOUT => {
            check_range(value, 0, i32::MAX)?;
            slot.user_timeout_ms.store(value as u32, Relaxed);
            tell(setting::USER_TIMEOUT, value);
            Ok(())
        }
        libc::TCP_NOTSENT_LOWAT => {
            slot.notsent_lowat.store(value as u32, Relaxed);
            set_bit(handle, option_bit::NOTSENT_LOWAT, value != 0);
            tell(setting::NOTSENT_LOWAT, value);
            Ok(())
        }
        libc::TCP_FASTOPEN_CONNECT => set_fast_open_connect(handle, value),
        libc::TCP_LINGER2 => {
            // As on Linux, a negative value disables the FIN-WAIT-2 timeout, and 0 selects the
            // default.
            let value = value.clamp(-1, LINGER2_MAX);
            let shown = if value == 0 { LINGER2_DEFAULT } else { value };
            handle.remember(libc::IPPROTO_TCP, name, shown);
            tell(setting::LINGER2, value);
            Ok(())
        }
        libc::TCP_DEFER_ACCEPT => {
            let value = whole_repetitions(value);
            set_bit(handle, option_bit::DEFER_ACCEPT, value != 0);
            handle.remember(libc::IPPROTO_TCP, name, value);
            tell(setting::DEFER_ACCEPT, value);
            Ok(())
        }
        _ => fail(libc::ENOPROTOOPT),
    }
}

/// Sets TCP_KEEPIDLE, TCP_KEEPINTVL or TCP_KEEPCNT. Notifies the engine only if SO_KEEPALIVE is on.
fn set_keepalive(handle: &OpenSocket, name: i32, value: i32) -> Result<()> {
    let slot = handle.slot;
    check_range(value, 1, if name == libc::TCP_KEEPCNT { 127 } else { 32767 })?;
    match name {
        libc::TCP_KEEPIDLE => slot.keepidle.store(value as u32, Relaxed),
        libc::TCP_KEEPINTVL => slot.keepintvl.store(value as u32, Relaxed),
        _ => slot.keepcnt.store(value as u16, Relaxed),
    }
    if slot.option_bits.load(Relaxed) & option_bit::KEEPALIVE != 0 {
        handle.client.setting(handle.socket, setting::KEEPALIVE, 1);
    }
    Ok(())
}

/// Sets TCP_FASTOPEN_CONNECT. Fails for a listener, and once connect(2) was called.
fn set_fast_open_connect(handle: &OpenSocket, value: i32) -> Result<()> {
    check_range(value, 0, 1)?;
    let seen = handle.slot.flags.load(Acquire);
    let used = flags::CONNECTED | flags::CONNECTING;
    if seen & used != 0 || handle.kind() == Kind::Listener {
        return fail(libc::EINVAL);
    }
    engine_set(handle, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, &value.to_ne_bytes())?;
    handle.remember(libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, value);
    Ok(())
}

/// Rounds the value of TCP_DEFER_ACCEPT in seconds up to the time of a SYN-ACK retransmission (1,
/// 3, 7, 15 ... seconds), because Linux counts retransmissions.
fn whole_repetitions(seconds: i32) -> i32 {
    let (mut period, mut step, mut count) = (0, 1, 0);
    while period < seconds && count < REPETITIONS_MAX {
        period += step;
        step = (step * 2).min(RTO_MAX_S);
        count += 1;
    }
    period
}

/// Returns the value of TCP_SAVED_SYN: the headers of the SYN, or only their length if the buffer
/// is too small.
pub(super) fn saved_syn(
    handle: &OpenSocket,
    room: libc::socklen_t,
) -> Result<(Vec<u8>, libc::socklen_t)> {
    let reply = engine_get_part(handle, libc::IPPROTO_TCP, TCP_SAVED_SYN, room)?;
    let room = usize::try_from(room).unwrap_or(0);
    let syn = reply.payload();
    Ok((syn[..syn.len().min(room)].to_vec(), reply.a))
}
