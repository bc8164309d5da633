//! What a new process image needs to find its engine: the control socket, its number in the
//! environment, and the library that this is in LD_PRELOAD.

use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use towpath_client::descriptors::{DESCRIPTORS_MAX, Entry};
use towpath_client::{Client, Cloned, Error, HighFd, Lock, LockGuard, syscall};
use towpath_shm::control::{ENV_CONTROL, purpose};
use towpath_shm::layout::{Command, op};

use crate::errno::fail;
use crate::process::PROCESS;
use crate::{Result, process, rights};

/// Entries of an environment that are looked at, should its end be missing: execve(2) takes far fewer (E2BIG).
const ENTRIES_MAX: usize = 1 << 20;
const PRELOAD: &str = "LD_PRELOAD";

// What LD_PRELOAD was when this image started; leaked, null when there was none.
static OUR_PRELOAD: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
static LOCK: Lock<Spawns> = Lock::new(Spawns { seat: None, pipes: Vec::new() });
// Length of `Spawns::pipes`, so that closing any other stream takes no lock.
static PIPES: AtomicUsize = AtomicUsize::new(0);

/// What is known of programs that this one starts.
#[derive(Debug)]
pub(crate) struct Spawns {
    /// The number at which a spawned program finds its control socket. `None` until the program uses
    /// posix_spawn_file_actions_addclosefrom_np(3): the actions made since then leave this number open, and any
    /// will do before. While nothing is being spawned the blank token is there.
    seat: Option<HighFd>,
    pipes: Vec<Pipe>,
}

/// A stream of popen(3).
#[derive(Debug, Clone, Copy)]
pub struct Pipe {
    /// Its address.
    pub stream: usize,
    /// Its descriptor.
    pub fd: i32,
    /// The process of the command.
    pub command: i32,
}

/// Where the seat is put: an action that closes all from a number on becomes one for each number up to the seat,
/// so it is not as high as the library's other descriptors (16384). Small programs use no numbers up there.
const SEAT_LOWEST: i32 = 900;

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Held while a channel is cloned, or while a control socket is open that a program to be started inherits.
///
/// `None` in a signal handler that has interrupted such a call: it would wait for its own thread.
pub(crate) fn lock() -> Option<LockGuard<'static, Spawns>> {
    LOCK.lock_unless_mine()
}

/// The control socket's number as the environment has it.
pub(crate) fn control_number() -> Option<i32> {
    let value = variable(ENV_CONTROL)?;
    value.to_str().ok()?.parse().ok().filter(|&number: &i32| number >= 0)
}

fn variable(name: &str) -> Option<&'static CStr> {
    let name = CString::new(name).ok()?;
    // SAFETY: called from the constructor, before the program changes its environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a string of the environment, see above.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// Notes LD_PRELOAD, before the program can change it.
pub(crate) fn remember_preload() {
    if let Some(value) = variable(PRELOAD) {
        OUR_PRELOAD.store(value.to_owned().into_raw(), Ordering::Relaxed);
    }
}

/// PATH as the program has it now.
pub(crate) fn search_path() -> Option<&'static CStr> {
    // SAFETY: getenv, as execvp calls it: a thread that changes the environment meanwhile would break execvp, too.
    let value = unsafe { libc::getenv(c"PATH".as_ptr()) };
    // SAFETY: a string of the environment, as long as it does not change.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// Whether the loader of another program finds our library, which is the first that it is told of.
pub(crate) fn library_is_there() -> bool {
    let ours = OUR_PRELOAD.load(Ordering::Relaxed);
    if ours.is_null() {
        return true;
    }
    // SAFETY: leaked by `remember_preload`.
    let ours = unsafe { CStr::from_ptr(ours) }.to_bytes();
    let first = ours.split(|byte| matches!(byte, b':' | b' ')).find(|path| !path.is_empty());
    let readable = |path| rustix::fs::access(path, rustix::fs::Access::READ_OK).is_ok();
    first.is_none_or(readable)
}

/// Whether an entry is `name=...`.
///
/// # Safety
/// `entry` must be a C string.
unsafe fn names(entry: *const c_char, name: &str) -> bool {
    // SAFETY: the caller's promise.
    let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
    entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

/// A copy of an environment with our entries right.
#[derive(Debug)]
pub struct Environment {
    entries: Vec<*const c_char>,
    _own: Vec<CString>,
}

impl Environment {
    /// # Safety
    /// `from` must be a null-terminated array of C strings, or null.
    unsafe fn new(from: *const *const c_char, control: i32) -> Self {
        let mut entries = Vec::new();
        let mut preload: Option<&CStr> = None;
        let mut at = from;
        // SAFETY: the caller's promise.
        while !at.is_null() && unsafe { !(*at).is_null() } && entries.len() < ENTRIES_MAX {
            // SAFETY: as above.
            unsafe {
                if names(*at, PRELOAD) {
                    preload = Some(CStr::from_ptr((*at).add(PRELOAD.len() + 1)));
                } else if !names(*at, ENV_CONTROL) {
                    entries.push(*at);
                }
                at = at.add(1);
            }
        }
        let mut own = vec![format!("{ENV_CONTROL}={control}").into_bytes()];
        own.extend(preload_entry(preload));
        let own: Vec<CString> =
            own.into_iter().filter_map(|entry| CString::new(entry).ok()).collect();
        entries.extend(own.iter().map(|entry| entry.as_ptr()));
        entries.push(std::ptr::null());
        Self { entries, _own: own }
    }

    /// For execve.
    pub fn as_ptr(&self) -> *const *const c_char {
        self.entries.as_ptr()
    }
}

/// LD_PRELOAD with our library in it, whatever else is.
fn preload_entry(theirs: Option<&CStr>) -> Option<Vec<u8>> {
    let ours = OUR_PRELOAD.load(Ordering::Relaxed);
    // SAFETY: leaked by `remember_preload`.
    let ours = (!ours.is_null()).then(|| unsafe { CStr::from_ptr(ours) }.to_bytes());
    let theirs = theirs.map(CStr::to_bytes).filter(|theirs| !theirs.is_empty());
    let value = match (ours, theirs) {
        (None, None) => return None,
        (Some(only), None) | (None, Some(only)) => only.to_vec(),
        (Some(ours), Some(theirs)) if theirs.windows(ours.len()).any(|part| part == ours) => {
            theirs.to_vec()
        }
        (Some(ours), Some(theirs)) => [ours, b":", theirs].concat(),
    };
    Some([PRELOAD.as_bytes(), b"=", &value].concat())
}

/// The program's environment as it is.
pub fn current() -> *const *const c_char {
    // SAFETY: a plain read of libc's variable, as execv does it.
    unsafe { environ.cast() }
}

/// execve and its kin: `real` gets the environment to use, and returns only when it fails.
///
/// # Safety
/// `envp` must be a null-terminated array of C strings, or null.
pub unsafe fn exec<T>(
    envp: *const *const c_char,
    real: impl FnOnce(*const *const c_char) -> T,
) -> T {
    let Ok(client) = process::client() else {
        return real(envp);
    };
    let _lock = lock();
    list_inheritable(client, false);
    // With a channel of its own the new image holds what it inherits; ours ends with this image. If the engine has
    // no further channel, the new image takes over ours.
    let own = client.clone_channel(purpose::EXEC).map(Cloned::into_control);
    let control = own.as_ref().unwrap_or_else(|_| client.control());
    // SAFETY: the caller's promise.
    let environment = unsafe { Environment::new(envp, control.get()) };
    control.set_inheritable(true);
    let result = real(environment.as_ptr());
    control.set_inheritable(false);
    result
}

/// Tells the engine what a program would have that is executed now, for the next clone, and gives those
/// descriptors names. With `actions` also those that file actions may pass on.
fn list_inheritable(client: &Client, actions: bool) {
    let may_go = PROCESS.descriptors.ours(0).filter_map(|(fd, entry)| {
        let Entry::Socket(socket) = entry else { return None };
        let inherited = syscall::fcntl(fd, libc::F_GETFD, 0)
            .is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize == 0);
        if inherited {
            client.socket_command(socket, op::LIST, 0, 0);
        }
        (inherited || actions && is_in_actions(fd)).then_some((fd, socket))
    });
    rights::name(client, may_go);
}

// A bit for each number that a file action of posix_spawn was ever told to duplicate. libc carries the actions
// out in the new process, and posix_spawn_file_actions_t is opaque, so at the spawn nobody can look which are in
// it. A descriptor that gets a name without need costs a token.
static IN_ACTIONS: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];

/// posix_spawn_file_actions_adddup2(3) was told to duplicate this number.
pub fn note_in_actions(fd: i32) {
    if let Some(word) = IN_ACTIONS.get(fd as usize / 64) {
        word.fetch_or(1 << (fd % 64), Ordering::Relaxed);
    }
}

fn is_in_actions(fd: i32) -> bool {
    let word = IN_ACTIONS.get(fd as usize / 64).map_or(0, |word| word.load(Ordering::Relaxed));
    word >> (fd % 64) & 1 == 1
}

/// posix_spawn_file_actions_addclosefrom_np(3): `close` and `close_from` make libc's actions that close one
/// number, and all from one on. The number where the program finds its control socket stays open.
pub fn close_from(
    from: i32,
    mut close: impl FnMut(i32) -> i32,
    close_from: impl FnOnce(i32) -> i32,
) -> i32 {
    let Some(seat) = seat().filter(|&seat| (0..=seat).contains(&from)) else {
        return close_from(from);
    };
    if let Some(failed) = (from..seat).map(&mut close).find(|&failed| failed != 0) {
        return failed;
    }
    match close_from(seat + 1) {
        // The seat is the highest number below the limit.
        libc::EBADF => 0,
        other => other,
    }
}

fn seat() -> Option<i32> {
    let client = process::client().ok()?;
    let mut spawns = lock()?;
    if spawns.seat.is_none() {
        let blank = client.blank();
        spawns.seat = blank.duplicate_above(SEAT_LOWEST).or_else(|_| blank.duplicate()).ok();
    }
    spawns.seat.as_ref().map(HighFd::get)
}

/// A channel for a program to be spawned, under the lock.
struct Spawning {
    client: &'static Client,
    control: HighFd,
    // The control socket's in the program.
    number: i32,
    lock: Option<LockGuard<'static, Spawns>>,
}

impl Spawning {
    /// None without an engine, or descriptors left in this process: the program finds out for itself.
    fn new() -> Result<Option<Self>> {
        let Ok(client) = process::client() else {
            return Ok(None);
        };
        let lock = lock();
        list_inheritable(client, true);
        let control = match client.clone_channel(purpose::SPAWN) {
            Ok(cloned) => cloned.into_control(),
            Err(Error::Refused(libc::EAGAIN)) => return fail(libc::EAGAIN),
            Err(_) => return Ok(None),
        };
        let seat = lock.as_ref().and_then(|spawns| spawns.seat.as_ref());
        let number = match seat {
            Some(seat) if seat.become_duplicate(&control, true).is_ok() => seat.get(),
            // Nobody asked for it; or the limit is below it by now, and no other number is left alone.
            _ => {
                control.set_inheritable(true);
                control.get()
            }
        };
        Ok(Some(Self { client, control, number, lock }))
    }
}

impl Drop for Spawning {
    fn drop(&mut self) {
        if let Some(seat) = self.lock.as_ref().and_then(|spawns| spawns.seat.as_ref()) {
            // If it fails, it failed in `new`, too, and the token is there still.
            let _ = seat.become_duplicate(self.client.blank(), false);
        }
        self.control.close();
        self.client.command(&Command { op: op::SPAWNED, ..Command::default() });
    }
}

/// posix_spawn and its kin: `real` gets the environment to use.
///
/// # Errors
/// EAGAIN when the run has as many processes as it can have.
///
/// # Safety
/// `envp` must be a null-terminated array of C strings, or null.
pub unsafe fn spawn<T>(
    envp: *const *const c_char,
    real: impl FnOnce(*const *const c_char) -> T,
) -> Result<T> {
    let Some(spawning) = Spawning::new()? else {
        return Ok(real(envp));
    };
    // SAFETY: the caller's promise.
    let environment = unsafe { Environment::new(envp, spawning.number) };
    Ok(real(environment.as_ptr()))
}

/// popen(3) has made a stream, whose command is a process.
pub fn note_pipe(pipe: Pipe) {
    if let Some(mut spawns) = lock() {
        spawns.pipes.push(pipe);
        PIPES.fetch_add(1, Ordering::Relaxed);
    }
}

/// The descriptors that commands of popen(3) do not inherit: those of the streams before.
pub fn pipe_descriptors() -> Vec<i32> {
    lock().map(|spawns| spawns.pipes.iter().map(|pipe| pipe.fd).collect()).unwrap_or_default()
}

/// A stream is closed: its command, if popen(3) has made it.
pub fn take_pipe(stream: usize) -> Option<i32> {
    if PIPES.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut spawns = lock()?;
    let at = spawns.pipes.iter().position(|pipe| pipe.stream == stream)?;
    PIPES.fetch_sub(1, Ordering::Relaxed);
    Some(spawns.pipes.swap_remove(at).command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_completed() {
        let given: Vec<CString> =
            ["A=1", "TOWPATH_CONTROL=77", "TOWPATH_CONTROLS=2", "LD_PRELOAD=/x.so"]
                .into_iter()
                .map(|entry| CString::new(entry).unwrap())
                .collect();
        let mut pointers: Vec<_> = given.iter().map(|entry| entry.as_ptr()).collect();
        pointers.push(std::ptr::null());
        OUR_PRELOAD.store(CString::new("/ours.so").unwrap().into_raw(), Ordering::Relaxed);
        // SAFETY: built just now.
        let made = unsafe { Environment::new(pointers.as_ptr(), 5) };
        let mut texts = Vec::new();
        for &entry in &made.entries[..made.entries.len() - 1] {
            // SAFETY: strings that live in `given` and `made`.
            texts.push(unsafe { CStr::from_ptr(entry) }.to_str().unwrap());
        }
        assert_eq!(
            texts,
            ["A=1", "TOWPATH_CONTROLS=2", "TOWPATH_CONTROL=5", "LD_PRELOAD=/ours.so:/x.so"]
        );
    }
}
