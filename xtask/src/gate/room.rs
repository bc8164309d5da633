//! Checks for free disk space before the gate's builds.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Size of `target` in bytes after a gate that started without the folder.
const NEED: u64 = 5 << 30;
const GIB: f64 = (1_u64 << 30) as f64;

/// Fails if the disk has too little space. On a full disk, compilers and linkers fail with
/// misleading errors.
pub fn check(target: &Path) -> Result<()> {
    std::fs::create_dir_all(target).with_context(|| target.display().to_string())?;
    let disk = rustix::fs::statvfs(target).context("statvfs")?;
    let free = disk.f_bavail * disk.f_frsize;
    let missing = NEED.saturating_sub(bytes(&target.join("debug")));
    ensure!(
        free >= missing,
        "{}: {:.1} GiB are free, and the gate writes up to {:.1} GiB; `cargo clean` or \
         CARGO_TARGET_DIR may help",
        target.display(),
        free as f64 / GIB,
        missing as f64 / GIB,
    );
    Ok(())
}

/// Returns the disk usage in bytes of files below a folder. Ignores errors, because other processes
/// may remove files meanwhile.
fn bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(it) if it.is_dir() => bytes(&entry.path()),
        Ok(it) => it.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_folders_within_count() {
        let folder = std::env::temp_dir().join(format!("towpath-room-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("within")).expect("a folder");
        std::fs::write(folder.join("within/file"), vec![1; 100_000]).expect("a file");
        let counted = bytes(&folder);
        std::fs::remove_dir_all(&folder).expect("removed");
        assert!(counted >= 100_000, "{counted}");
    }
}
