//! The folder for what lives as long as a run: the preload library and the sockets of `towpath ss`.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// Folders of this user, the preferred first. They need not exist.
pub fn candidates() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute());
    let runtime = runtime.map(|path| PathBuf::from(path).join("towpath"));
    let temporary = PathBuf::from(format!("/tmp/towpath-{}", geteuid().as_raw()));
    runtime.into_iter().chain([temporary]).collect()
}

/// Makes the folder if need be. `Err` unless it is this user's alone to write to: what lies in it
/// is loaded into programs.
pub fn prepare(path: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = std::fs::symlink_metadata(path)?;
    let refuse = |why: &str| Err(io::Error::other(format!("{} {why}", path.display())));
    if !metadata.is_dir() {
        return refuse("is not a folder");
    }
    if metadata.uid() != geteuid().as_raw() {
        return refuse("belongs to another user");
    }
    if metadata.mode() & 0o022 != 0 {
        return refuse("can be written to by others");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_folder_that_is_ours_alone_will_do() {
        let root = std::env::temp_dir().join(format!("towpath-folder-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let good = root.join("good");
        prepare(&good).unwrap();
        prepare(&good).unwrap();
        std::fs::set_permissions(&good, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(prepare(&good).unwrap_err().to_string().contains("written to by others"));
        let link = root.join("link");
        std::os::unix::fs::symlink("/usr", &link).unwrap();
        assert!(prepare(&link).unwrap_err().to_string().contains("not a folder"));
        assert!(prepare(&root.join("no/such")).is_err());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
