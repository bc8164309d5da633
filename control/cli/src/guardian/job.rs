//! Job of a guardian. Towpath writes the job to a memory file, and sends the file over the socket.
//!
//! The same message contains further descriptors: PROGRAM's standard input, the write end of the
//! run's parent-death pipe, and optionally the control socket. The guardian's own standard input is
//! the socket.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use rustix::fs::MemfdFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Resource};
use towpath_engine::caller::{self, SignalState};
use towpath_shm::control::ENV_CONTROL;

use crate::activation::Activation;
use crate::guardian::namespace::Namespace;
use crate::preload;

/// Program that the guardian starts, and its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Path of the file to execute.
    pub path: PathBuf,
    /// PROGRAM and its arguments as given on the command line.
    pub words: Vec<OsString>,
    /// How PROGRAM's sockets reach the stack.
    pub way: Way,
    /// Signal state of the process that started towpath, which PROGRAM inherits.
    pub signals: SignalState,
    /// Whether PROGRAM's standard output is redirected to standard error, because towpath writes
    /// the capture to standard output.
    pub output_to_error: bool,
    /// Sockets to pass to PROGRAM. `None` if the environment variables for passed sockets stay
    /// unchanged.
    pub activation: Option<Activation>,
    /// Value of HOSTNAME in PROGRAM's environment. `None` leaves the variable unchanged.
    pub hostname: Option<String>,
}

/// How PROGRAM's sockets reach the stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Through the preload library at this path.
    Library(PathBuf),
    /// Through the kernel's sockets in a network namespace whose device leads to the stack.
    Namespace(Namespace),
}

/// Job of the guardian process: which program to start, and the descriptors that it inherits.
pub struct Received {
    job: Job,
    stdin: OwnedFd,
    /// Control socket. `None` if PROGRAM runs without the preload library.
    control: Option<OwnedFd>,
}

impl Job {
    /// Sends the job to a guardian, with the control socket for PROGRAM and a write end of the
    /// parent-death pipe.
    pub fn send(
        &self,
        guardian: BorrowedFd<'_>,
        control: Option<BorrowedFd<'_>>,
        lifeline: BorrowedFd<'_>,
    ) -> Result<()> {
        let memory =
            rustix::fs::memfd_create("job", MemfdFlags::CLOEXEC).context("memfd_create")?;
        let mut file = File::from(memory);
        file.write_all(&self.encode())?;
        let always = [file.as_fd(), rustix::stdio::stdin(), lifeline];
        let fds: Vec<_> = always.into_iter().chain(control).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        let byte = [IoSlice::new(b"j")];
        sendmsg(guardian, &byte, &mut ancillary, SendFlags::NOSIGNAL).context("sendmsg")?;
        Ok(())
    }

    /// Waits for a job and the parent-death pipe. `None` if towpath has ended before it sent a job.
    pub fn receive(owner: BorrowedFd<'_>) -> Result<Option<(Received, OwnedFd)>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let parts = &mut [IoSliceMut::new(&mut byte)];
        let message = recvmsg(owner, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
            .context("standard input is not the socket of a run")?;
        if message.bytes == 0 {
            return Ok(None);
        }
        let mut fds = ancillary.drain().flat_map(|part| match part {
            RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<OwnedFd>>(),
            _ => Vec::new(),
        });
        let mut next = || fds.next().context("a descriptor is missing");
        let (memory, stdin, lifeline) = (next()?, next()?, next()?);
        let control = fds.next();
        let mut bytes = Vec::new();
        let mut file = File::from(memory);
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        let job = Self::decode(&bytes).context("the job is not whole")?;
        Ok(Some((Received { job, stdin, control }, lifeline)))
    }

    /// Encodes the job as a sequence of NUL-terminated strings. The strings cannot contain NUL
    /// themselves.
    fn encode(&self) -> Vec<u8> {
        let numbers = [self.signals.ignored, self.signals.blocked, u64::from(self.output_to_error)];
        let numbers = numbers.map(|number| OsString::from(number.to_string()));
        let (kind, way) = match &self.way {
            Way::Library(path) => (LIBRARY, path.as_os_str().to_owned()),
            Way::Namespace(namespace) => (NAMESPACE, namespace.encode().into()),
        };
        let activation = self.activation.as_ref().map(Activation::encode).unwrap_or_default();
        let hostname = OsStr::new(self.hostname.as_deref().unwrap_or_default());
        let words =
            [activation.as_os_str(), hostname, OsStr::new(kind), &way, self.path.as_os_str()];
        let all = numbers.iter().map(OsString::as_os_str).chain(words);
        let all = all.chain(self.words.iter().map(OsString::as_os_str));
        all.flat_map(|text| [text.as_bytes(), &[0]].concat()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.strip_suffix(&[0])?;
        let mut parts = bytes.split(|byte| *byte == 0).map(OsStr::from_bytes);
        let mut number = || parts.next()?.to_str()?.parse::<u64>().ok();
        let signals = SignalState { ignored: number()?, blocked: number()? };
        let output_to_error = number()? != 0;
        let activation = match parts.next()? {
            none if none.is_empty() => None,
            some => Some(Activation::decode(some)?),
        };
        let hostname = Some(parts.next()?.to_str()?.to_owned()).filter(|name| !name.is_empty());
        let (kind, way) = (parts.next()?, parts.next()?);
        let way = match kind.to_str()? {
            LIBRARY => Way::Library(way.into()),
            NAMESPACE => Way::Namespace(Namespace::decode(way.to_str()?)?),
            _ => return None,
        };
        let path = parts.next()?.into();
        let words = parts.map(OsString::from).collect();
        Some(Self { path, words, way, signals, output_to_error, activation, hostname })
    }
}

/// Names that identify the variants of [`Way`] in an encoded job.
const LIBRARY: &str = "library";
const NAMESPACE: &str = "namespace";

impl Received {
    /// Returns the network namespace in which PROGRAM starts. `None` if PROGRAM has no namespace of
    /// its own.
    pub fn namespace(&self) -> Option<&Namespace> {
        match &self.job.way {
            Way::Namespace(namespace) => Some(namespace),
            Way::Library(_) => None,
        }
    }

    /// Starts PROGRAM, and returns its process id.
    pub fn start(self) -> std::io::Result<Pid> {
        let Self { job, stdin, control } = self;
        // Add a slash if the path has none, because such a name would be searched in PATH. The path
        // has no slash if it was found through an empty entry of PATH, which means the current
        // directory.
        let path = if job.path.as_os_str().as_bytes().contains(&b'/') {
            job.path
        } else {
            Path::new(".").join(job.path)
        };
        let mut command = Command::new(&path);
        if let Some((name, arguments)) = job.words.split_first() {
            command.arg0(name).args(arguments);
        }
        command.stdin(Stdio::from(stdin));
        if job.output_to_error {
            command.stdout(std::io::stderr().as_fd().try_clone_to_owned()?);
        }
        let mut environment = Vec::new();
        let mut put = |name: &str, value: Option<OsString>| -> std::io::Result<()> {
            let value = value.map(|value| CString::new(value.into_vec())).transpose()?;
            environment.push((CString::new(name)?, value));
            Ok(())
        };
        let mut process_id = None;
        if let Some(activation) = &job.activation {
            for (name, value) in activation.environment() {
                put(name, value)?;
            }
            process_id = activation.process_id();
        }
        if let Some(name) = &job.hostname {
            put("HOSTNAME", Some(name.into()))?;
        }
        if let (Way::Library(library), true) = (&job.way, control.is_some()) {
            let before = std::env::var_os("LD_PRELOAD");
            put("LD_PRELOAD", Some(preload::environment(library, before, &path)))?;
            put(ENV_CONTROL, Some(control_number().to_string().into()))?;
            // Disable io_uring in libuv, because its file and socket operations would bypass the C
            // library.
            put("UV_USE_IO_URING", Some("0".into()))?;
        }
        caller::set_environment(&mut command, environment, process_id);
        if let (Way::Library(_), Some(control)) = (&job.way, control) {
            let number = control_number();
            caller::prepare(&mut command, job.signals, control, number);
        } else {
            caller::prepare_bound(&mut command, job.signals);
        }
        let child = command.spawn()?;
        Pid::from_raw(child.id() as i32).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
    }
}

/// Returns the number of PROGRAM's control socket. The number is high, because programs expect low
/// numbers to be free, and it is below the descriptor limit.
fn control_number() -> i32 {
    const PREFERRED: u64 = 1000;
    /// Number of free descriptors above the control socket that the preload library needs.
    const ABOVE: u64 = 16;
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    PREFERRED.min(limit.saturating_sub(ABOVE).max(3)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_survives_the_way() {
        let odd = OsString::from_vec(vec![0xff, b'\n', b' ']);
        let job = Job {
            path: "/bin/x".into(),
            words: vec!["x".into(), "".into(), odd, "".into()],
            way: Way::Library("/run/lib.so".into()),
            signals: SignalState { ignored: 1 << 63, blocked: 7 },
            output_to_error: true,
            activation: None,
            hostname: Some("web".into()),
        };
        assert_eq!(Job::decode(&job.encode()), Some(job.clone()));
        let namespace = Namespace {
            mtu: 1500,
            addresses: vec![("10.0.2.15".parse().unwrap(), 24)],
            routers: vec!["10.0.2.2".parse().unwrap()],
            nameservers: Vec::new(),
            hostname: Some("web".into()),
            hosts: "10.0.2.15\tweb\n".into(),
            asked_for_sockets: true,
        };
        let way = Way::Namespace(namespace);
        let activation = Activation::decode(OsStr::new("2:web:"));
        assert!(activation.is_some());
        let words = vec!["".into()];
        let plain = Job { words, output_to_error: false, way, activation, hostname: None, ..job };
        assert_eq!(Job::decode(&plain.encode()), Some(plain));
        assert_eq!(Job::decode(b"1\x002\0"), None);
    }
}
