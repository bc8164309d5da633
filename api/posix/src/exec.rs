//! Prepares execve(2) and posix_spawn(3), so that the new program can attach to the engine. Opens a
//! channel (a connection to the engine) for the program. Passes the number of the channel's control
//! socket in the environment ([`crate::environment`]). `spawns` contains the state of the programs
//! that this one starts.

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

/// Lowest number for a reserved descriptor, at which a spawned program finds its control socket.
/// The number must be low: a spawn action that closes all descriptors from N on becomes one action
/// per number below the reserved one. However, the number must be above those that small programs
/// use.
const RESERVED_FD_LOWEST: i32 = 900;
/// A descriptor number that is never open, because the kernel's limit (fs.nr_open) is below 2^31.
const NOWHERE: i32 = i32::MAX;

/// Implements execve(2) and its variants. `real` executes the program with the given environment,
/// and returns only if it fails.
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
        // SAFETY: `envp` is null or a null-terminated array of C strings, by the contract of this
        // function.
        return unsafe { host.exec(posix, program, envp, real) };
    }
    list_inheritable(posix, client, false);
    // Open a channel (connection to the engine) for the new program, so that it keeps the sockets
    // that it inherits. The channel of this program ends at exec. If no channel is available, the
    // new program takes over this program's.
    let own = client.clone_channel(purpose::EXEC).map(Cloned::into_control);
    let control = own.as_ref().unwrap_or_else(|_| client.control());
    // SAFETY: `envp` is null or a null-terminated array of C strings, by the contract of this
    // function.
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

/// Prepares exec(3) in a process that contains the engine (the network stack). The engine ends at
/// exec, and the executed program starts a new one. Therefore `library`, which contains the engine,
/// is preloaded into the program. TOWPATH_CONTROL then names `socket`, over which the new engine is
/// configured. Called once per process.
pub fn host(posix: &'static Posix, socket: Fd, library: Vec<u8>) {
    let socket = HighFd::new(socket, &posix.process.descriptors);
    posix.spawns.set_host(EngineHost { socket, library });
}

/// Closes the launch socket of the engine in a forked child. Only the parent has the engine. If the
/// child kept the socket, `towpath run` would not notice the end of the engine.
pub(crate) fn leave_host(posix: &'static Posix) {
    if let Some(host) = posix.spawns.host() {
        host.socket.close();
    }
}

impl EngineHost {
    /// Executes a program in the process that contains the engine. A program that cannot load the
    /// library creates no engine, so it must not inherit the launch socket. If the socket stayed
    /// open, `towpath run` would not notice that the engine has ended.
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
        // Pass an invalid number to a program that uses the kernel's sockets. If that program
        // executes a program that uses the stack, the socket calls of the latter must fail.
        let is_on_stack = program.sockets == SocketsPlace::Stack;
        let number = if is_on_stack { self.socket.get() } else { NOWHERE };
        // Remove this library from LD_PRELOAD. The library that contains the engine defines the
        // same functions.
        let preload_with = |theirs: Option<&CStr>| {
            let all = theirs.map(CStr::to_bytes).unwrap_or_default();
            let others = all.split(|byte| matches!(byte, b':' | b' '));
            let others: Vec<_> = others.filter(|path| !posix.library.is(path)).collect();
            Some(image::preload(program.sanitizer.as_deref(), &self.library, &others.join(&b':')))
        };
        let place =
            ControlPlace { number, descriptors_max: limit::lowered(posix), address_space: None };
        // SAFETY: `envp` is null or a null-terminated array of C strings, by the contract of this
        // function.
        let environment = unsafe { Environment::new(envp, place, preload_with) };
        self.socket.set_inheritable(is_on_stack);
        let result = real(environment.as_ptr());
        self.socket.set_inheritable(false);
        result
    }
}

/// Tells the engine which sockets an executed program will inherit, and marks their kernel
/// descriptors with their names. The next channel that is opened holds references to these sockets.
/// If `actions` is true, this includes descriptors that file actions of posix_spawn(3) may
/// duplicate.
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

/// Records that a file action of posix_spawn(3) will duplicate this descriptor.
pub fn note_in_actions(posix: &'static Posix, fd: i32) {
    // Ignores numbers that are too high for a socket's descriptor.
    posix.spawns.in_actions.add(fd);
}

/// Implements posix_spawn_file_actions_addclosefrom_np(3). `close` adds the action that closes one
/// number, `close_from` the action that closes all numbers from N on. The reserved number stays
/// open, because the spawned program finds its control socket at this number.
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
        // EBADF: the reserved number is the highest below the limit, so no number above it needs to
        // be closed.
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

/// A channel (connection to the engine) for a program that is about to be spawned. Holds the lock
/// of [`crate::spawns`].
struct Spawning {
    client: &'static Client,
    control: HighFd,
    // Descriptor number of the control socket in the spawned program.
    number: i32,
    lock: Option<LockGuard<'static, Started>>,
}

impl Spawning {
    /// Opens a channel to the engine for the program to be spawned. Returns `None` if there is no
    /// engine, or no free descriptor: the program then fails to attach.
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
            // No number is reserved, or the reserved number is above the descriptor limit now. The
            // new program inherits the control socket at its current number, although spawn actions
            // may close this number.
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
            // Restore the placeholder at the reserved number, which the control socket has
            // replaced. If this fails, the replacement in `new` has failed as well, so nothing
            // needs to be restored.
            let _ = seat.become_duplicate(self.client.blank(), false);
        }
        self.control.close();
        self.client.spawned();
    }
}

/// Implements posix_spawn(3) and its variants. `real` spawns the program with the given
/// environment.
///
/// # Errors
/// EAGAIN if the engine already serves the maximum number of processes.
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
    // SAFETY: `envp` is null or a null-terminated array of C strings, by the contract of this
    // function.
    let environment = unsafe {
        // libc starts the program with the kernel's limits of this process. The program must lower
        // them itself.
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

/// Records a stream created by popen(3), and the process ID of its command.
pub fn note_pipe(posix: &'static Posix, pipe: Pipe) {
    posix.spawns.note_pipe(pipe);
}

/// Returns the descriptors of open popen(3) streams, which later commands of popen(3) must not
/// inherit.
pub fn pipe_descriptors(posix: &'static Posix) -> Vec<i32> {
    posix.spawns.pipe_descriptors()
}

/// Removes the record of a stream that is being closed. Returns the process ID of its command, if
/// popen(3) created the stream.
pub fn take_pipe(posix: &'static Posix, stream: usize) -> Option<i32> {
    posix.spawns.take_pipe(stream)
}
