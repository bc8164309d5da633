//! Exports the functions of resolver(3), which query nameservers over the stack and return whole
//! DNS messages.
//!
//! glibc keeps the resolver's settings in a `struct __res_state`, one per thread or one that the
//! program allocates. Functions that create or parse messages (res_mkquery, dn_expand, ns_parserr)
//! are not replaced. Each function has two names: since glibc 2.34, libc exports it by the name in
//! the manual page. Before, libresolv exported it by a name with underscores.

use std::ffi::CStr;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_char, c_int, c_uchar};
use towpath_posix::dns::Substitution;
use towpath_posix::dns::raw::{
    self, Asked, SendOutcome, StubResolver, StubSettings, flag, h_errno,
};

use crate::res_state::ResState;
use crate::{POSIX, answer, real};

/// Minimum length in bytes of a buffer that includes the byte of a DNS header with the RCODE.
const CODE_END: usize = 4;

/// A resolver function of libc or libresolv, which is exported by one of two names.
struct Own {
    at: AtomicUsize,
    names: [&'static CStr; 2],
}

impl Own {
    const fn new(names: [&'static CStr; 2]) -> Self {
        Self { at: AtomicUsize::new(0), names }
    }

    /// Returns the address of the function, or 0 if neither name exists because libresolv is not
    /// loaded.
    fn get(&self) -> usize {
        let known = self.at.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        // SAFETY: `name` is NUL-terminated. RTLD_NEXT searches the libraries after this one.
        let find = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
        let at = self.names.into_iter().map(find).find(|at| *at != 0).unwrap_or(0);
        self.at.store(at, Ordering::Relaxed);
        at
    }
}

/// Defines resolver functions under both of their names. If the stack has no nameserver, they call
/// libc's functions.
macro_rules! functions {
    ($($name:ident $other:ident ($($arg:ident: $kind:ty),*) in $settings:expr => $ours:expr;)*) => {
        /// Looks up the addresses of libc's resolver functions. Called by the constructor, see
        /// [`crate::real`].
        pub fn resolve_all() {
            $(own::$name.get();)*
        }

        mod own {
            #![allow(non_upper_case_globals)]
            use super::Own;
            $(pub(super) static $name: Own = Own::new([name!($name), name!($other)]);)*
        }

        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $kind),*) -> c_int {
                // SAFETY: the caller upholds the C function's contract.
                unsafe {
                    let settings: Option<(*mut ResState, StubSettings)> = $settings;
                    if let Some((state, settings)) = settings {
                        return $ours(state, &settings, $($arg),*);
                    }
                    let at = own::$name.get();
                    if at == 0 {
                        return failed(&mut None, h_errno::NO_RECOVERY);
                    }
                    let own: unsafe extern "C" fn($($kind),*) -> c_int = std::mem::transmute(at);
                    own($($arg),*)
                }
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $other($($arg: $kind),*) -> c_int {
                // SAFETY: the caller upholds the C function's contract.
                unsafe { $name($($arg),*) }
            }
        )*
    };
}

macro_rules! name {
    ($name:ident) => {
        match ::std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!(),
        }
    };
}

functions! {
    res_query __res_query(
        name: *const c_char, class: c_int, kind: c_int, to: *mut c_uchar, len: c_int
    ) in of_thread() => query;
    res_search __res_search(
        name: *const c_char, class: c_int, kind: c_int, to: *mut c_uchar, len: c_int
    ) in of_thread() => search;
    res_querydomain __res_querydomain(
        name: *const c_char, domain: *const c_char, class: c_int, kind: c_int, to: *mut c_uchar,
        len: c_int
    ) in of_thread() => query_domain;
    res_send __res_send(
        message: *const c_uchar, message_len: c_int, to: *mut c_uchar, len: c_int
    ) in of_thread() => send;
    res_nquery __res_nquery(
        state: *mut ResState, name: *const c_char, class: c_int, kind: c_int, to: *mut c_uchar,
        len: c_int
    ) in of(state) => |state, settings, _, name, class, kind, to, len| {
        query(state, settings, name, class, kind, to, len)
    };
    res_nsearch __res_nsearch(
        state: *mut ResState, name: *const c_char, class: c_int, kind: c_int, to: *mut c_uchar,
        len: c_int
    ) in of(state) => |state, settings, _, name, class, kind, to, len| {
        search(state, settings, name, class, kind, to, len)
    };
    res_nquerydomain __res_nquerydomain(
        state: *mut ResState, name: *const c_char, domain: *const c_char, class: c_int,
        kind: c_int, to: *mut c_uchar, len: c_int
    ) in of(state) => |state, settings, _, name, domain, class, kind, to, len| {
        query_domain(state, settings, name, domain, class, kind, to, len)
    };
    res_nsend __res_nsend(
        state: *mut ResState, message: *const c_uchar, message_len: c_int, to: *mut c_uchar,
        len: c_int
    ) in of(state) => |state, settings, _, message, message_len, to, len| {
        send(state, settings, message, message_len, to, len)
    };
}

/// res_init(3): initializes the resolver settings of this thread again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __res_init() -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { initialised(real::__res_init(), real::__res_state().cast()) }
}

/// res_ninit(3): initializes the resolver settings in `state`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __res_ninit(state: *mut ResState) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { initialised(real::__res_ninit(state.cast()), state) }
}

unsafe fn initialised(result: c_int, state: *mut ResState) -> c_int {
    if result == 0
        && let Some(substitution) = Substitution::new(&POSIX)
    {
        // SAFETY: glibc has initialized the state.
        unsafe { (*state).substitute(&substitution) };
    }
    result
}

/// Returns the resolver settings of this thread. First looks up a numeric name, which makes glibc
/// read /etc/resolv.conf if it has not yet done so, or if the file has changed. Returns `None` if
/// names are resolved over the kernel's network.
unsafe fn of_thread() -> Option<(*mut ResState, StubSettings)> {
    let substitution = Substitution::new(&POSIX)?;
    // SAFETY: the pointers are to local variables. A numeric name sends no query.
    unsafe {
        let mut host: libc::hostent = std::mem::zeroed();
        let (mut buffer, mut to, mut error) = ([0; 512], std::ptr::null_mut(), 0);
        let at = buffer.as_mut_ptr();
        let name = c"127.0.0.1".as_ptr();
        real::gethostbyname_r(name, &raw mut host, at, buffer.len(), &raw mut to, &raw mut error);
        let state: *mut ResState = real::__res_state().cast();
        if (*state).options & flag::INIT == 0 {
            return None;
        }
        Some((state, (*state).settings(&substitution)))
    }
}

/// Returns the resolver settings in a structure of the program. Returns `None` if `state` is null,
/// or if names are resolved over the kernel's network in this run.
unsafe fn of(state: *mut ResState) -> Option<(*mut ResState, StubSettings)> {
    if state.is_null() {
        return None;
    }
    let substitution = Substitution::new(&POSIX)?;
    // SAFETY: resolv.h requires the program to initialize the state.
    Some((state, unsafe { (*state).settings(&substitution) }))
}

unsafe fn query(
    state: *mut ResState,
    settings: &StubSettings,
    name: *const c_char,
    class: c_int,
    kind: c_int,
    to: *mut c_uchar,
    len: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        let name = CStr::from_ptr(name).to_bytes();
        tell(state, resolver(settings, class, kind, len).query(name), to, len)
    }
}

unsafe fn search(
    state: *mut ResState,
    settings: &StubSettings,
    name: *const c_char,
    class: c_int,
    kind: c_int,
    to: *mut c_uchar,
    len: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        // As glibc does, set h_errno and errno first, and leave them unchanged if an answer is
        // found.
        set_h_errno(state.as_mut(), h_errno::HOST_NOT_FOUND);
        answer::set_errno(0);
        let name = CStr::from_ptr(name).to_bytes();
        tell(state, resolver(settings, class, kind, len).search(name), to, len)
    }
}

#[allow(clippy::too_many_arguments)] // Signature as in libc.
unsafe fn query_domain(
    state: *mut ResState,
    settings: &StubSettings,
    name: *const c_char,
    domain: *const c_char,
    class: c_int,
    kind: c_int,
    to: *mut c_uchar,
    len: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract: `domain` is null or NUL-terminated.
    unsafe {
        let domain = (!domain.is_null()).then(|| CStr::from_ptr(domain).to_bytes());
        let name = CStr::from_ptr(name).to_bytes();
        tell(state, resolver(settings, class, kind, len).query_domain(name, domain), to, len)
    }
}

unsafe fn send(
    _state: *mut ResState,
    settings: &StubSettings,
    message: *const c_uchar,
    message_len: c_int,
    to: *mut c_uchar,
    len: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        let message = match usize::try_from(message_len) {
            Ok(0) | Err(_) => &[],
            Ok(len) => slice::from_raw_parts(message, len),
        };
        let SendOutcome { message, result } = raw::send(&POSIX, settings, message, room(len));
        copy(&message, to, len);
        match result {
            Ok(len) => len as c_int,
            Err(errno) => {
                answer::set_errno(errno.0);
                -1
            }
        }
    }
}

fn resolver(settings: &StubSettings, class: c_int, kind: c_int, len: c_int) -> StubResolver<'_> {
    StubResolver { posix: &POSIX, settings, class, kind, room: room(len) }
}

fn room(len: c_int) -> usize {
    usize::try_from(len).unwrap_or(0)
}

/// Copies the answer to a DNS question to the program's buffer, sets h_errno, and returns the value
/// that the C function returns.
unsafe fn tell(state: *mut ResState, asked: Asked, to: *mut c_uchar, len: c_int) -> c_int {
    // SAFETY: `to` has `len` writable bytes, by the contract of the C functions.
    unsafe {
        if room(len) >= CODE_END {
            // Clear the RCODE in the program's buffer, because programs read it even if no message
            // was received.
            *to.add(CODE_END - 1) &= 0xf0;
        }
        copy(&asked.message, to, len);
        match asked.result {
            Ok(len) => len as c_int,
            Err(why) => {
                if let Some(errno) = why.errno {
                    answer::set_errno(errno);
                }
                failed(&mut state.as_mut(), why.h_errno)
            }
        }
    }
}

unsafe fn copy(message: &[u8], to: *mut c_uchar, len: c_int) {
    let count = message.len().min(room(len));
    // SAFETY: `to` has `len` writable bytes, by the contract of the C functions.
    unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), to, count) };
}

fn failed(state: &mut Option<&mut ResState>, h_errno: c_int) -> c_int {
    set_h_errno(state.as_deref_mut(), h_errno);
    -1
}

fn set_h_errno(state: Option<&mut ResState>, h_errno: c_int) {
    if let Some(state) = state {
        state.res_h_errno = h_errno;
    }
    // SAFETY: `__h_errno_location` returns a valid pointer to this thread's h_errno.
    unsafe { *real::__h_errno_location() = h_errno };
}
