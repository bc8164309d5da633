//! Preparations for a new process image, which must find its engine: a channel, and the control
//! socket, whose number is in the environment ([`crate::environment`]). `spawns` keeps the state of
//! programs that this one starts.

use std::ffi::{CStr, c_char};

use towpath_client::descriptors::DescriptorKind;
use towpath_client::{Client, Cloned, Error, HighFd, LockGuard, syscall};
use towpath_shm::control::purpose;
use towpath_shm::layout::op;
use towpath_shm::{Fd, image};

use crate::environment::{ControlPlace, Environment};
use crate::errno::fail;
use crate::outside::{Executable, SocketsPlace};
use crate::spawns::Started;
use crate::{Posix, Result, limit, rights};

use crate::spawns::EngineHost;
pub use crate::spawns::Pipe;

/// Lowest number of the seat. Spawn actions that close all numbers from one on become one action
/// for each number up to the seat. The library's other descriptors (16384) would be too high for
/// that. Small programs use no numbers up there.
const RESERVED_FD_LOWEST: i32 = 900;
/// A number that no descriptor has: the kernel gives none beyond fs.nr_open, which is below 2^31 at
/// most.
const NOWHERE: i32 = i32::MAX;

/// execve and its kin: `real` gets the environment to use, and returns only when it fails.
///
/// # Safety
/// `envp` must be a null-terminated array of C strings, or null.
pub unsafe fn exec<T>(
    posix: &'static Posix,
    program: &Executable,
    envp: *const *const c_char,
    real: impl FnOnce(*const *const c_char) -> T,
) -> T {
    let Ok(client) = posix.client() else {
        return real(envp);
    };
    let _lock = posix.spawns.lock();
    if let Some(host) = posix.spawns.host().filter(|_| client.driver().is_some()) {
        // SAFETY: the caller's promise.
        return unsafe { host.exec(posix, program, envp, real) };
    }
    list_inheritable(posix, client, false);
    // With a channel of its own the new image holds what it inherits; ours ends with this image. If
    // the engine has no further channel, the new image takes over ours.
    let own = client.clone_channel(purpose::EXEC).map(Cloned::into_control);
    let control = own.as_ref().unwrap_or_else(|_| client.control());
    // SAFETY: the caller's promise.
    let environment = unsafe {
        let place = ControlPlace {
            number: control.get(),
            descriptors_max: None,
            address_space: limit::surplus(posix),
        };
        let sanitizer = program.sanitizer.as_deref();
        Environment::new(envp, place, |theirs| posix.library.with_preload(sanitizer, theirs))
    };
    control.set_inheritable(true);
    let result = real(environment.as_ptr());
    control.set_inheritable(false);
    result
}

/// The engine is in this process, and ends with this image. A program that it executes makes
/// another one: it finds `socket` in the place of a control socket, and `library` makes the engine.
/// Once in a process.
pub fn host(posix: &'static Posix, socket: Fd, library: Vec<u8>) {
    let socket = HighFd::new(socket, &posix.process.descriptors);
    posix.spawns.set_host(EngineHost { socket, library });
}

/// In the child after fork: the engine is its parent's, whose end `towpath run` would not hear of
/// as long as this process had the socket.
pub(crate) fn leave_host(posix: &'static Posix) {
    if let Some(host) = posix.spawns.host() {
        host.socket.close();
    }
}

impl EngineHost {
    /// A program without the library does not get the socket: it makes no engine, and would only
    /// keep `towpath run` from hearing that there is none.
    ///
    /// # Safety
    /// As for [`exec`].
    unsafe fn exec<T>(
        &self,
        posix: &'static Posix,
        program: &Executable,
        envp: *const *const c_char,
        real: impl FnOnce(*const *const c_char) -> T,
    ) -> T {
        // Programs that a program outside the stack executes find that their network is down.
        let is_on_stack = program.sockets == SocketsPlace::Stack;
        let number = if is_on_stack { self.socket.get() } else { NOWHERE };
        // Not both libraries: they have the same functions.
        let preload_with = |theirs: Option<&CStr>| {
            let all = theirs.map(CStr::to_bytes).unwrap_or_default();
            let others = all.split(|byte| matches!(byte, b':' | b' '));
            let others: Vec<_> = others.filter(|path| !posix.library.is(path)).collect();
            Some(image::preload(program.sanitizer.as_deref(), &self.library, &others.join(&b':')))
        };
        let place =
            ControlPlace { number, descriptors_max: limit::lowered(posix), address_space: None };
        // SAFETY: the caller's promise.
        let environment = unsafe { Environment::new(envp, place, preload_with) };
        self.socket.set_inheritable(is_on_stack);
        let result = real(environment.as_ptr());
        self.socket.set_inheritable(false);
        result
    }
}

/// Tells the engine what a program would have that is executed now, for the next clone, and gives
/// those descriptors names. With `actions` also those that file actions may pass on.
fn list_inheritable(posix: &'static Posix, client: &Client, actions: bool) {
    let may_go = posix.process.descriptors.ours(0).filter_map(|(fd, entry)| {
        let DescriptorKind::Socket(socket) = entry else { return None };
        let inherited = syscall::fcntl(fd, libc::F_GETFD, 0)
            .is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize == 0);
        if inherited {
            client.socket_command(socket, op::LIST, 0, 0);
        }
        (inherited || actions && posix.spawns.in_actions.has(fd)).then_some((fd, socket))
    });
    rights::name(posix, client, may_go);
}

/// posix_spawn_file_actions_adddup2(3) was told to duplicate this number.
pub fn note_in_actions(posix: &'static Posix, fd: i32) {
    // A number beyond all that can be a socket's is nothing to note.
    posix.spawns.in_actions.add(fd);
}

/// posix_spawn_file_actions_addclosefrom_np(3): `close` and `close_from` make libc's actions that
/// close one number, and all from one on. The number where the program finds its control socket
/// stays open.
pub fn close_from(
    posix: &'static Posix,
    from: i32,
    mut close: impl FnMut(i32) -> i32,
    close_from: impl FnOnce(i32) -> i32,
) -> i32 {
    let Some(seat) = reserved_fd(posix).filter(|&seat| (0..=seat).contains(&from)) else {
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

fn reserved_fd(posix: &'static Posix) -> Option<i32> {
    let client = posix.client().ok()?;
    let mut spawns = posix.spawns.lock()?;
    if spawns.seat.is_none() {
        let blank = client.blank();
        spawns.seat = blank.duplicate_above(RESERVED_FD_LOWEST).or_else(|_| blank.duplicate()).ok();
    }
    spawns.seat.as_ref().map(HighFd::get)
}

/// A channel for a program to be spawned, under the lock.
struct Spawning {
    client: &'static Client,
    control: HighFd,
    // The control socket's in the program.
    number: i32,
    lock: Option<LockGuard<'static, Started>>,
}

impl Spawning {
    /// None without an engine, or descriptors left in this process: the program finds out for
    /// itself.
    fn new(posix: &'static Posix) -> Result<Option<Self>> {
        let Ok(client) = posix.client() else {
            return Ok(None);
        };
        let lock = posix.spawns.lock();
        list_inheritable(posix, client, true);
        let control = match client.clone_channel(purpose::SPAWN) {
            Ok(cloned) => cloned.into_control(),
            Err(Error::Refused(libc::EAGAIN)) => return fail(libc::EAGAIN),
            Err(_) => return Ok(None),
        };
        let seat = lock.as_ref().and_then(|spawns| spawns.seat.as_ref());
        let number = match seat {
            Some(seat) if seat.become_duplicate(&control, true).is_ok() => seat.get(),
            // No program asked for the seat, or the limit is below it by now. Spawn actions spare
            // no other number.
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
        self.client.spawned();
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
    posix: &'static Posix,
    program: &Executable,
    envp: *const *const c_char,
    real: impl FnOnce(*const *const c_char) -> T,
) -> Result<T> {
    let Some(spawning) = Spawning::new(posix)? else {
        return Ok(real(envp));
    };
    // SAFETY: the caller's promise.
    let environment = unsafe {
        // libc starts it, with the kernel's limits.
        let place = ControlPlace {
            number: spawning.number,
            descriptors_max: limit::lowered(posix),
            address_space: limit::surplus(posix),
        };
        let sanitizer = program.sanitizer.as_deref();
        Environment::new(envp, place, |theirs| posix.library.with_preload(sanitizer, theirs))
    };
    Ok(real(environment.as_ptr()))
}

/// popen(3) has made a stream, whose command is a process.
pub fn note_pipe(posix: &'static Posix, pipe: Pipe) {
    posix.spawns.note_pipe(pipe);
}

/// The descriptors that commands of popen(3) do not inherit: those of the streams before.
pub fn pipe_descriptors(posix: &'static Posix) -> Vec<i32> {
    posix.spawns.pipe_descriptors()
}

/// A stream is closed: its command, if popen(3) has made it.
pub fn take_pipe(posix: &'static Posix, stream: usize) -> Option<i32> {
    posix.spawns.take_pipe(stream)
}
