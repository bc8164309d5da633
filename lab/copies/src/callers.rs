//! Call sites in a process, as addresses in the files of its program and libraries.

use std::path::Path;

use anyhow::{Context, Result};

use crate::functions::Map;

/// Files that a process has mapped.
pub struct Objects {
    maps: String,
}

impl Objects {
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/maps");
        Ok(Self { maps: std::fs::read_to_string(&path).context(path)? })
    }

    pub fn has(&self, path: &Path) -> bool {
        self.all().any(|map| Path::new(map.path) == path)
    }

    /// Returns file and address of the call that returns to `caller`, in the format of
    /// addr2line(1). Supports only files with addresses from zero: libraries and
    /// position-independent programs.
    pub fn place(&self, caller: u64) -> Option<String> {
        let call = caller.checked_sub(1)?;
        let path = self.all().find(|map| map.contains(call))?.path;
        let base = self.all().find(|map| map.path == path && map.offset == 0)?.begin;
        path.starts_with('/').then(|| format!("{path}+{:#x}", call - base))
    }

    fn all(&self) -> impl Iterator<Item = Map<'_>> {
        self.maps.lines().filter_map(Map::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_the_call_in_its_file() {
        let maps = "1000-2000 r--p 00000000 fe:00 1      /bin/a b\n\
                    2000-3000 r-xp 00001000 fe:00 1      /bin/a b\n\
                    4000-5000 rw-p 00000000 00:00 0 \n";
        let objects = Objects { maps: maps.to_owned() };
        assert!(objects.has(Path::new("/bin/a b")) && !objects.has(Path::new("/bin/a")));
        assert_eq!(objects.place(0x2005).as_deref(), Some("/bin/a b+0x1004"));
        for nowhere in [0, 0x1000, 0x4001, 0x9000] {
            assert_eq!(objects.place(nowhere), None, "{nowhere:x}");
        }
    }
}
