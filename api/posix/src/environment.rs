//! The environment variables of this program, and of the programs that it starts.

use std::ffi::{CStr, CString, c_char};

use towpath_shm::control::ENV_CONTROL;

/// Maximum number of entries that are read from an environment, in case its terminating null
/// pointer is missing. execve(2) accepts far fewer (E2BIG).
const ENTRIES_MAX: usize = 1 << 20;
/// The dynamic loader loads the libraries that this variable names, among them this one.
const PRELOAD: &CStr = c"LD_PRELOAD";

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Returns the environment of this program, a null-terminated array of C strings.
pub fn current() -> *const *const c_char {
    // SAFETY: this reads libc's variable `environ` once, as execv(3) does.
    unsafe { environ.cast() }
}

/// Parsed value of TOWPATH_CONTROL: the number of the socket to the engine, and limits that the
/// program must set itself, separated by colons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ControlPlace {
    /// Number of the descriptor of the program's control socket, a Unix socket to its engine (the
    /// network stack).
    pub number: i32,
    /// Hard limit of descriptors (RLIMIT_NOFILE) that the program must set itself. None: the
    /// program must not set any limit.
    pub descriptors_max: Option<u64>,
    /// Number of bytes by which the program must lower its limit of address space (RLIMIT_AS).
    /// None: the limit stays.
    pub address_space: Option<u64>,
}

impl ControlPlace {
    /// Parses the variable TOWPATH_CONTROL. Called from the constructor of this library.
    pub fn from_environment() -> Option<Self> {
        let name = CString::new(ENV_CONTROL).ok()?;
        Self::parse(variable(&name)?.to_str().ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let number = parts.next()?.parse().ok().filter(|&number: &i32| number >= 0)?;
        let mut limit = || parts.next()?.parse().ok();
        Some(Self { number, descriptors_max: limit(), address_space: limit() })
    }

    fn text(self) -> String {
        let Self { number, descriptors_max, address_space } = self;
        let limit = |limit: Option<u64>| limit.map(|limit| limit.to_string()).unwrap_or_default();
        let text = format!("{number}:{}:{}", limit(descriptors_max), limit(address_space));
        text.trim_end_matches(':').to_owned()
    }
}

/// Returns the value of LD_PRELOAD. Called from the constructor of this library.
pub(crate) fn preload() -> Option<&'static CStr> {
    variable(PRELOAD)
}

/// Returns whether this program runs under valgrind, because LD_PRELOAD then contains a library of
/// valgrind.
pub(crate) fn is_under_valgrind() -> bool {
    const PART: &[u8] = b"/vgpreload_core-";
    let all = preload().map(CStr::to_bytes).unwrap_or_default();
    all.windows(PART.len()).any(|part| part == PART)
}

/// Replaces the value of LD_PRELOAD by the result of `value`, which gets the current value. Does
/// nothing if the variable is unset. Called in the library's constructor, before there are other
/// threads. Writes to `environ` directly, because the setenv(3) of programs such as bash does not
/// work before main.
pub fn replace_preload(value: impl FnOnce(&[u8]) -> Vec<u8>) {
    let mut at = current().cast_mut();
    // SAFETY: the environment ends with a null pointer, and no other thread changes it.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            if names(*at, PRELOAD.to_bytes()) {
                let before = CStr::from_ptr((*at).add(PRELOAD.count_bytes() + 1)).to_bytes();
                let entry = [PRELOAD.to_bytes(), b"=", &value(before)].concat();
                // The paths in the value contain no NUL, so this conversion succeeds.
                if let Ok(entry) = CString::new(entry) {
                    *at = entry.into_raw();
                }
                return;
            }
            at = at.add(1);
        }
    }
}

/// Returns the current value of PATH.
pub(crate) fn search_path() -> Option<&'static CStr> {
    variable(c"PATH")
}

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: in the constructor, no thread changes the environment. Later, a concurrent change
    // would break execvp, too, which calls getenv in the same way.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: getenv returns a NUL-terminated string, which is valid until the environment changes.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// Copy of an environment with TOWPATH_CONTROL and LD_PRELOAD set for a program to be started.
#[derive(Debug)]
pub struct Environment {
    entries: Vec<*const c_char>,
    _own: Vec<CString>,
}

impl Environment {
    /// Creates the environment of a program to be started. `control` names the descriptor of its
    /// control socket. `preload_with` converts the value of LD_PRELOAD in `from` to that for the
    /// program.
    ///
    /// # Safety
    /// `from` must be a null-terminated array of C strings, or null.
    pub(crate) unsafe fn new(
        from: *const *const c_char,
        control: ControlPlace,
        preload_with: impl FnOnce(Option<&CStr>) -> Option<Vec<u8>>,
    ) -> Self {
        let mut entries = Vec::new();
        let mut preload: Option<&CStr> = None;
        let mut at = from;
        // SAFETY: `from` is null or a null-terminated array, and the loop stops at its null
        // pointer.
        while !at.is_null() && unsafe { !(*at).is_null() } && entries.len() < ENTRIES_MAX {
            // SAFETY: `*at` is an entry before the null pointer: a C string.
            unsafe {
                if names(*at, PRELOAD.to_bytes()) {
                    preload = Some(CStr::from_ptr((*at).add(PRELOAD.count_bytes() + 1)));
                } else if !names(*at, ENV_CONTROL.as_bytes()) {
                    entries.push(*at);
                }
                at = at.add(1);
            }
        }
        let mut own = vec![format!("{ENV_CONTROL}={}", control.text()).into_bytes()];
        let preload = preload_with(preload);
        own.extend(preload.map(|value| [PRELOAD.to_bytes(), b"=", &value].concat()));
        let own: Vec<CString> =
            own.into_iter().filter_map(|entry| CString::new(entry).ok()).collect();
        entries.extend(own.iter().map(|entry| entry.as_ptr()));
        entries.push(std::ptr::null());
        Self { entries, _own: own }
    }

    /// Returns the null-terminated array of variables for execve(2).
    pub fn as_ptr(&self) -> *const *const c_char {
        self.entries.as_ptr()
    }
}

/// Returns whether an entry has the form `name=...`.
///
/// # Safety
/// `entry` must be a C string.
unsafe fn names(entry: *const c_char, name: &[u8]) -> bool {
    // SAFETY: `entry` is a C string, as the contract of this function demands.
    let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
    entry.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&b'='))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Library;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        for place in [
            ControlPlace { number: 5, descriptors_max: None, address_space: None },
            ControlPlace { number: 5, descriptors_max: None, address_space: Some(7) },
            ControlPlace { number: i32::MAX, descriptors_max: Some(u64::MAX), address_space: None },
        ] {
            assert_eq!(ControlPlace::parse(&place.text()), Some(place));
        }
        assert!(["", "-1", ":5", "x", "5 "].iter().all(|text| ControlPlace::parse(text).is_none()));
        // An invalid limit after the colon is ignored.
        assert_eq!(ControlPlace::parse("5:x").map(|place| place.descriptors_max), Some(None));
    }

    #[test]
    fn an_environment_is_completed() {
        let given: Vec<CString> =
            ["A=1", "TOWPATH_CONTROL=77", "TOWPATH_CONTROLS=2", "LD_PRELOAD=/x.so"]
                .into_iter()
                .map(|entry| CString::new(entry).unwrap())
                .collect();
        let mut pointers: Vec<_> = given.iter().map(|entry| entry.as_ptr()).collect();
        pointers.push(std::ptr::null());
        let library = Library::new();
        library.remember(Some(c"/ours.so"));
        // SAFETY: `pointers` ends with a null pointer, and `given` keeps its strings alive.
        let made = unsafe {
            let place = ControlPlace { number: 5, descriptors_max: Some(64), address_space: None };
            Environment::new(pointers.as_ptr(), place, |theirs| library.with_preload(None, theirs))
        };
        let mut texts = Vec::new();
        for &entry in &made.entries[..made.entries.len() - 1] {
            // SAFETY: each entry points to a string in `given` or `made`, which are alive.
            texts.push(unsafe { CStr::from_ptr(entry) }.to_str().unwrap());
        }
        assert_eq!(
            texts,
            ["A=1", "TOWPATH_CONTROLS=2", "TOWPATH_CONTROL=5:64", "LD_PRELOAD=/ours.so:/x.so"]
        );
    }
}
