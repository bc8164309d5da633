//! Files that another program needs to load this library: the library itself, which LD_PRELOAD
//! names, and the stack unwinding library (libgcc_s).

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::fs::Access;
use towpath_shm::image;

/// The stack unwinding library, with which Rust's standard library is linked.
const UNWINDER: &str = "libgcc_s.so.1";
/// Folders that the dynamic loader always searches, whatever its configuration. On Debian, the
/// libraries are in a subfolder for the CPU architecture.
const LIBRARY_FOLDERS: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

unsafe extern "C" {
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// Paths of this library and of the unwinding library (libgcc_s), read at the start of this
/// program.
#[derive(Debug)]
pub(crate) struct Library {
    /// Value of LD_PRELOAD when this process image started. A leaked C string, or null if the
    /// variable was not set.
    preload: AtomicPtr<c_char>,
    /// Path of the unwinding library (libgcc_s). Null if it is not a separate file.
    unwinder: AtomicPtr<c_char>,
}

impl Library {
    /// Creates the state in which neither path is known yet.
    pub const fn new() -> Self {
        Self { preload: AtomicPtr::new(null_mut()), unwinder: AtomicPtr::new(null_mut()) }
    }

    /// Stores LD_PRELOAD and the path of the unwinding library. Called from the constructor, before
    /// the program can change the variable or the files.
    pub fn remember(&self, preload: Option<&CStr>) {
        if let Some(value) = preload {
            self.preload.store(value.to_owned().into_raw(), Ordering::Relaxed);
        }
        self.remember_unwinder();
    }

    fn remember_unwinder(&self) {
        let at = _Unwind_GetIP as unsafe extern "C" fn(_) -> _ as *const c_void;
        if let Some(path) =
            path_of(at).filter(|path| path.to_bytes().ends_with(UNWINDER.as_bytes()))
        {
            self.unwinder.store(path.as_ptr().cast_mut(), Ordering::Relaxed);
        }
    }

    /// Returns whether `path` is the path of this library: the first path in LD_PRELOAD at the
    /// start of this program.
    pub fn is(&self, path: &[u8]) -> bool {
        self.preload().is_some_and(|ours| first(ours) == Some(path))
    }

    /// Returns the value of LD_PRELOAD at the start of this program.
    fn preload(&self) -> Option<&[u8]> {
        let ours = self.preload.load(Ordering::Relaxed);
        // SAFETY: `remember` has leaked this C string.
        (!ours.is_null()).then(|| unsafe { CStr::from_ptr(ours) }.to_bytes())
    }

    /// Returns whether an executed program could read this library's file, at the first path of
    /// LD_PRELOAD. After chroot(2), for example, it could not. True if LD_PRELOAD was not set at
    /// the start.
    pub fn is_there(&self) -> bool {
        let Some(ours) = self.preload() else { return true };
        let readable = |path| rustix::fs::access(path, Access::READ_OK).is_ok();
        first(ours).is_none_or(readable)
    }

    /// Returns whether the dynamic loader of another program would find the unwinding library
    /// (libgcc_s). The library may be at the path that this program uses, in a standard folder, or
    /// in a folder configured in ld.so.conf(5).
    pub fn unwinder_is_there(&self) -> bool {
        let ours = self.unwinder.load(Ordering::Relaxed);
        if ours.is_null() {
            return true;
        }
        // SAFETY: this C string is the loader's path of the unwinding library, and stays valid
        // while that library is loaded.
        let ours = unsafe { CStr::from_ptr(ours) };
        let exists = |path: &Path| rustix::fs::access(path, Access::READ_OK).is_ok();
        exists(Path::new(OsStr::from_bytes(ours.to_bytes())))
            || LIBRARY_FOLDERS.iter().any(|folder| {
                let arch = std::env::consts::ARCH;
                let of_processor = format!("{folder}/{arch}-linux-gnu/{UNWINDER}");
                exists(&Path::new(folder).join(UNWINDER)) || exists(Path::new(&of_processor))
            })
            || is_in_cache()
    }

    /// Returns the value of LD_PRELOAD for a program that this one executes: the libraries
    /// preloaded into this program, followed by those in `theirs`. `runtime` is an AddressSanitizer
    /// runtime, which must come first. Returns `theirs` unchanged if nothing was preloaded into
    /// this program.
    pub fn with_preload(&self, runtime: Option<&[u8]>, theirs: Option<&CStr>) -> Option<Vec<u8>> {
        let theirs = theirs.map(CStr::to_bytes).filter(|theirs| !theirs.is_empty());
        let Some(ours) = self.preload() else { return theirs.map(<[u8]>::to_vec) };
        let theirs = theirs.unwrap_or_default();
        let own = first(ours).unwrap_or_default();
        let has_own = theirs.windows(ours.len()).any(|part| part == ours);
        let all = match (has_own, theirs.is_empty()) {
            (true, _) => theirs.to_vec(),
            (false, true) => ours.to_vec(),
            (false, false) => [ours, b":", theirs].concat(),
        };
        let needs_order = runtime.is_some() || image::has_sanitizer(&all);
        Some(if needs_order { image::preload(runtime, own, &all) } else { all })
    }
}

/// Returns the path from which this library was loaded.
pub(crate) fn own_path() -> Option<&'static [u8]> {
    path_of(own_path as fn() -> _ as *const c_void).map(CStr::to_bytes)
}

/// Returns the path of the loaded program or library that contains the address `at`.
fn path_of(at: *const c_void) -> Option<&'static CStr> {
    // SAFETY: Dl_info consists of pointers, for which zero is valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr accepts any address, and `info` can be written.
    if unsafe { libc::dladdr(at, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's C string stays valid while the file is loaded, and this file is in use.
    Some(unsafe { CStr::from_ptr(info.dli_fname) })
}

/// Returns the first path in a value of LD_PRELOAD. Colons and spaces separate paths.
fn first(preload: &[u8]) -> Option<&[u8]> {
    preload.split(|byte| matches!(byte, b':' | b' ')).find(|path| !path.is_empty())
}

/// Returns whether the loader's cache (/etc/ld.so.cache) contains the unwinding library.
fn is_in_cache() -> bool {
    let Ok(file) = image::open(Path::new("/etc/ld.so.cache")) else { return false };
    let mut cache = Vec::new();
    let mut part = [0; 4096];
    while let Ok(n @ 1..) = rustix::io::read(&*file, &mut part) {
        cache.extend_from_slice(&part[..n]);
    }
    cache.windows(UNWINDER.len()).any(|name| name == UNWINDER.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_preloaded_once_and_with_others() {
        let library = Library::new();
        assert_eq!(library.with_preload(None, None), None);
        assert_eq!(library.with_preload(None, Some(c"/x.so")).as_deref(), Some(&b"/x.so"[..]));
        library.remember(Some(c"/ours.so"));
        let value = |theirs| library.with_preload(None, theirs).unwrap();
        assert_eq!(value(None), b"/ours.so");
        assert_eq!(value(Some(c"")), b"/ours.so");
        assert_eq!(value(Some(c"/x.so")), b"/ours.so:/x.so");
        assert_eq!(value(Some(c"/x.so:/ours.so")), b"/x.so:/ours.so");
        let first = library.with_preload(Some(b"libasan.so.8"), Some(c"/x.so"));
        assert_eq!(first.as_deref(), Some(&b"libasan.so.8:/ours.so:/x.so"[..]));
        assert_eq!(value(Some(c"/libasan.so.8")), b"/libasan.so.8:/ours.so:/libasan.so.8");
    }

    #[test]
    fn a_library_that_was_not_preloaded_is_there() {
        let library = Library::new();
        assert!(library.is_there());
        library.remember(Some(c"/nowhere/ours.so:/proc/self/exe"));
        assert!(!library.is_there());
    }
}
