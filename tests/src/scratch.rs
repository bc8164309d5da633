use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory readable by all users, removed on drop.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("towpath-test-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).expect("scratch folder");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&path, open).expect("permissions of the scratch folder");
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file in the directory.
    pub fn file(&self, name: &str) -> String {
        self.path.join(name).to_str().expect("plain names").to_owned()
    }

    /// Writes a file, and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.file(name);
        std::fs::write(&path, content).expect("scratch file");
        path
    }

    /// Creates a sparse file of `len` bytes, and returns its path.
    pub fn sparse(&self, name: &str, len: u64) -> String {
        let path = self.file(name);
        let file = std::fs::File::create(&path).expect("sparse file");
        file.set_len(len).expect("a length");
        path
    }

    /// Creates a file of `len` bytes whose 8-byte words all differ, and returns its path.
    pub fn big(&self, name: &str, len: u64) -> String {
        use std::io::Write;
        let path = self.file(name);
        let mut out = std::io::BufWriter::new(std::fs::File::create(&path).expect("big file"));
        for word in 1..=len / 8 {
            // Multiplication by an odd number is a bijection, so that all words differ.
            let word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            out.write_all(&word.to_le_bytes()).expect("big file");
        }
        out.flush().expect("big file");
        path
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("{} stays: {error}", self.path.display());
        }
    }
}
