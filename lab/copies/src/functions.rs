//! Addresses of libc's copying functions in its file, in the variants that libc has chosen for this
//! processor.

use std::ffi::CStr;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

/// Copying functions whose third argument is the length. Several names often refer to the same
/// function. Checked variants such as `__memcpy_chk` call these, and would count twice.
const NAMES: [&CStr; 3] = [c"memcpy", c"memmove", c"mempcpy"];

/// Functions of one file.
#[derive(Debug, PartialEq, Eq)]
pub struct Functions {
    pub path: PathBuf,
    /// Offsets of the functions in the file, without duplicates.
    pub offsets: Vec<u64>,
}

impl Functions {
    /// Returns the functions that this process would call. Other processes on this machine call the
    /// same ones.
    pub fn find() -> Result<Self> {
        let mut addresses: Vec<u64> = Vec::new();
        for name in NAMES {
            // SAFETY: the name ends with a NUL byte, and has static lifetime.
            let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            ensure!(!address.is_null(), "libc has no {}", name.to_string_lossy());
            addresses.push(address as u64);
        }
        addresses.sort_unstable();
        addresses.dedup();
        Self::at(&addresses, &std::fs::read_to_string("/proc/self/maps")?)
    }

    fn at(addresses: &[u64], maps: &str) -> Result<Self> {
        let mut path = None;
        let mut offsets = Vec::new();
        for &address in addresses {
            let map = maps.lines().filter_map(Map::parse).find(|map| map.contains(address));
            let map = map.context("a function lies nowhere")?;
            ensure!(*path.get_or_insert(map.path) == map.path, "functions of several files");
            offsets.push(address - map.begin + map.offset);
        }
        let path = PathBuf::from(path.context("no function")?);
        ensure!(path.is_absolute(), "libc is not a file: {}", path.display());
        Ok(Self { path, offsets })
    }
}

/// A line of proc_pid_maps(5).
pub struct Map<'a> {
    pub begin: u64,
    pub end: u64,
    /// Offset of the mapping in the file.
    pub offset: u64,
    /// Path of the file; empty for an anonymous mapping.
    pub path: &'a str,
}

impl<'a> Map<'a> {
    pub fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let number = |word: &str| u64::from_str_radix(word, 16).ok();
        let (begin, end) = words.next()?.split_once('-')?;
        let offset = number(words.nth(1)?)?;
        let path = words.nth(2)?.trim_start();
        Some(Self { begin: number(begin)?, end: number(end)?, offset, path })
    }

    pub fn contains(&self, address: u64) -> bool {
        (self.begin..self.end).contains(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
7f0000000000-7f0000026000 r--p 00000000 fe:00 1234                       /lib/libc.so.6
7f0000026000-7f000017b000 r-xp 00026000 fe:00 1234                       /lib/libc.so.6
7f000017b000-7f000017c000 rw-p 00000000 00:00 0
7ffe00000000-7ffe00021000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn functions_are_found_in_their_file() {
        let found = Functions::at(&[0x7f00_0002_6010, 0x7f00_0003_0000], MAPS).unwrap();
        assert_eq!(found.path, PathBuf::from("/lib/libc.so.6"));
        assert_eq!(found.offsets, [0x26010, 0x30000]);
    }

    #[test]
    fn what_is_in_no_file_is_refused() {
        for address in [1, 0x7f00_0017_b000, 0x7ffe_0000_0000] {
            assert!(Functions::at(&[address], MAPS).is_err(), "{address:x}");
        }
        assert!(Functions::at(&[0x7f00_0002_6010, 0x7ffe_0000_0000], MAPS).is_err());
    }

    #[test]
    fn this_process_has_them() {
        let found = Functions::find().unwrap();
        assert!(found.path.exists() && !found.offsets.is_empty(), "{found:?}");
    }
}
