//! The socket on which a run tells `towpath ss` about itself, and the other end of it.
//!
//! One connection, one JSON document, closed. The socket lies in a folder of this user; the peer
//! must be this user or root as well.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::folder;

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(2);

/// A served socket; its file goes with it.
pub struct Instance {
    path: PathBuf,
}

impl Instance {
    /// Serves what `answer` gives at each request, on a thread that lives as long as the process.
    pub fn serve(answer: impl Fn() -> Vec<u8> + Send + 'static) -> Result<Self> {
        let path = socket_path()?;
        // Of a run with the same process id that was killed.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).with_context(|| path.display().to_string())?;
        let instance = Self { path };
        std::fs::set_permissions(&instance.path, PermissionsExt::from_mode(0o600))?;
        std::thread::Builder::new().name("towpath-ss".into()).spawn(move || {
            for stream in listener.incoming() {
                // A peer that goes away or may not ask is no concern of the run.
                let _ = stream.and_then(|stream| reply(stream, &answer));
            }
        })?;
        Ok(instance)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn reply(mut stream: UnixStream, answer: &impl Fn() -> Vec<u8>) -> io::Result<()> {
    let peer = socket_peercred(&stream)?.uid;
    if peer != geteuid() && !peer.is_root() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&answer())
}

fn socket_path() -> Result<PathBuf> {
    let mut refusals = Vec::new();
    for folder in folder::candidates() {
        match folder::prepare(&folder) {
            Ok(()) => return Ok(folder.join(format!("{}.sock", std::process::id()))),
            Err(error) => refusals.push(error.to_string()),
        }
    }
    anyhow::bail!("no folder for the control socket: {}", refusals.join("; "))
}

/// What each running instance answers, by process id; or only the one with `pid`.
pub fn ask_all(pid: Option<u32>) -> Vec<(u32, Vec<u8>)> {
    let mut sockets: Vec<_> = folders().iter().flat_map(|folder| sockets_in(folder)).collect();
    sockets.retain(|(number, _)| pid.is_none_or(|pid| pid == *number));
    sockets.sort();
    sockets.dedup_by_key(|(number, _)| *number);
    sockets.into_iter().filter_map(|(number, path)| Some((number, ask(&path)?))).collect()
}

/// This user's folders; for root, everybody's.
fn folders() -> Vec<PathBuf> {
    let mut out = folder::candidates();
    if geteuid().is_root() {
        let named = |root: &str, wanted: fn(&str) -> bool| {
            let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
            entries.filter(move |e| e.file_name().to_str().is_some_and(wanted)).map(|e| e.path())
        };
        out.extend(named("/tmp", |name| name.starts_with("towpath-")));
        out.extend(named("/run/user", |_| true).map(|path| path.join("towpath")));
    }
    out
}

fn sockets_in(folder: &Path) -> Vec<(u32, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let numbered = entries.filter_map(|entry| {
        let path = entry.path();
        let number = path.file_name()?.to_str()?.strip_suffix(".sock")?.parse().ok()?;
        Some((number, path))
    });
    numbered.collect()
}

fn ask(path: &Path) -> Option<Vec<u8>> {
    let mut stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) => {
            if error.kind() == io::ErrorKind::ConnectionRefused {
                // Nobody serves it any more: the run was killed.
                let _ = std::fs::remove_file(path);
            }
            return None;
        }
    };
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asked_and_answered_and_gone() {
        let pid = std::process::id();
        let instance = Instance::serve(|| b"hello".to_vec()).unwrap();
        let mode = std::fs::metadata(&instance.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(ask_all(Some(pid)), [(pid, b"hello".to_vec())]);
        assert!(ask_all(None).contains(&(pid, b"hello".to_vec())));
        let folder = instance.path.parent().unwrap().to_owned();
        drop(instance);
        assert_eq!(ask_all(Some(pid)), []);
        // What a killed run leaves behind is removed by whoever looks. No process has this number.
        let stale = folder.join("4194304.sock");
        drop(UnixListener::bind(&stale).unwrap());
        assert_eq!(ask_all(Some(4_194_304)), []);
        assert!(!stale.exists());
    }
}
