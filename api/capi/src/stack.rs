//! Numbered stacks with their descriptors, and their shutdown when the process exits.

use std::ptr;
use std::sync::{Arc, Mutex, Once, PoisonError};

use rustix::event::epoll;
use rustix::fd::BorrowedFd;
use rustix::net::Shutdown;
use towpath::embedded::EmbeddedEngine;
use towpath::{Builder, Published, ShutdownError, StartError};
use towpath_posix::{Errno, MappedPosix, Posix, Result, descriptor};

use crate::table::{InUse, NumberTable};

/// Maximum number of stacks, sockets and epoll sets of a process together. A socket takes a kernel
/// descriptor as well, so RLIMIT_NOFILE is usually lower.
const OBJECTS_MAX: usize = 1 << 20;

/// All stacks, sockets and epoll sets of the process.
pub static OBJECTS: NumberTable<NumberedObject, OBJECTS_MAX> = NumberTable::new();

/// An object that a program names by a number.
pub enum NumberedObject {
    Stack(Arc<NumberedStack>),
    OwnedDescriptor(OwnedDescriptor),
}

/// Reference to an object of [`OBJECTS`], which keeps the object alive during a call.
pub type ObjectInUse = InUse<'static, NumberedObject, OBJECTS_MAX>;

/// A stack that a C program has opened: its engine, and the connection of this process to the
/// engine.
pub struct NumberedStack {
    posix: MappedPosix,
    /// The engine; `None` after [`Self::end`] has stopped it.
    engine: Mutex<Option<EmbeddedEngine>>,
    pub addresses: Vec<std::net::IpAddr>,
    pub published: Vec<Published>,
}

/// A socket or epoll set of a stack.
pub struct OwnedDescriptor {
    pub stack: Arc<NumberedStack>,
    /// Kernel descriptor that represents the socket or epoll set in [`towpath_posix`].
    pub inner: i32,
    /// Eventfd that wakes threads waiting for this epoll set; `None` until the first wake-up.
    pub wakeup: Mutex<Option<rustix::fd::OwnedFd>>,
}

impl NumberedStack {
    /// Starts an engine, and connects this process to it.
    pub fn start(builder: Builder) -> std::result::Result<Self, StartError> {
        let (engine, control) = EmbeddedEngine::start(builder)?;
        let posix = match MappedPosix::attach(control) {
            Ok(posix) => posix,
            Err(errno) => {
                engine.kill();
                return Err(match errno.0 {
                    libc::ENOMEM => StartError::AddressSpace,
                    errno => StartError::System(std::io::Error::from_raw_os_error(errno)),
                });
            }
        };
        let (addresses, published) = (engine.addresses().to_vec(), engine.published().to_vec());
        Ok(Self { posix, engine: Mutex::new(Some(engine)), addresses, published })
    }

    /// Returns the state of the stack in this process. The caller must keep the stack alive while
    /// it uses the result.
    pub fn posix(&self) -> &'static Posix {
        // SAFETY: every caller holds the stack during the call, and keeps no reference after it.
        unsafe { self.posix.get() }
    }

    /// Returns ENETDOWN in a forked child, because the stack belongs to the parent. The kernel
    /// zeroes the client state in the child (MADV_WIPEONFORK).
    pub fn check_process(&self) -> Result<()> {
        self.posix().client().map(drop)
    }

    /// Returns ENETDOWN if the engine has ended. [`towpath_posix`] itself reports this as an event.
    pub fn check_alive(&self) -> Result<()> {
        match self.posix().client()? {
            client if client.is_dead() => Err(Errno(libc::ENETDOWN)),
            _ => Ok(()),
        }
    }

    /// Disconnects this process from the engine. The engine then closes all sockets, and sends
    /// their remaining data.
    fn hang_up(&self) {
        if let Ok(client) = self.posix().client() {
            // Ignore errors: the control socket may be disconnected already because the engine has
            // ended.
            let _ = rustix::net::shutdown(client.control().borrow(), Shutdown::Both);
        }
    }

    /// Begins to stop the engine when the process exits. [`Self::end`] waits until the engine has
    /// ended.
    fn begin_end(&self) {
        self.posix().begins_to_end();
        // If the lock is held, another thread is already stopping the engine.
        if let Ok(mut engine) = self.engine.try_lock()
            && let Some(engine) = &mut *engine
        {
            engine.begin_linger();
        }
        self.hang_up();
    }

    /// Waits until remaining data is sent, and stops the engine. Concurrent calls on the stack's
    /// sockets fail with ENETDOWN.
    fn end(&self) -> std::result::Result<(), ShutdownError> {
        // Hold the lock while waiting. A second call then waits for the lock, and returns only
        // after the engine has ended.
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = engine.take() else { return Ok(()) };
        self.hang_up();
        engine.finish()
    }
}

impl Drop for NumberedStack {
    fn drop(&mut self) {
        // Ignore errors: `close` has already reported them, or the stack was never passed to the
        // program.
        let _ = self.end();
    }
}

impl NumberedObject {
    /// Returns the socket or epoll set, or ENOTSOCK for a stack.
    pub fn descriptor(&self) -> Result<&OwnedDescriptor> {
        match self {
            Self::OwnedDescriptor(descriptor) => Ok(descriptor),
            Self::Stack(_) => Err(Errno(libc::ENOTSOCK)),
        }
    }

    /// Returns the stack, or EINVAL for a socket or epoll set.
    pub fn stack(&self) -> Result<&Arc<NumberedStack>> {
        match self {
            Self::Stack(stack) => Ok(stack),
            Self::OwnedDescriptor(_) => Err(Errno(libc::EINVAL)),
        }
    }
}

impl OwnedDescriptor {
    /// Assigns a number to a kernel descriptor that a call of [`towpath_posix`] has opened.
    pub fn open(stack: &Arc<NumberedStack>, inner: i32) -> Result<i32> {
        let descriptor = Self { stack: Arc::clone(stack), inner, wakeup: Mutex::new(None) };
        OBJECTS.open(NumberedObject::OwnedDescriptor(descriptor)).ok_or(Errno(libc::EMFILE))
    }

    /// Wakes threads that wait for this epoll set when the stack ends. The engine itself wakes them
    /// only if the set contains sockets. We add the control socket to the set, which is readable
    /// after [`NumberedStack::end`]. Unlike an eventfd, the control socket needs no free
    /// descriptor.
    fn wake_waiters(&self) {
        let posix = self.stack.posix();
        if let Ok(client) = posix.client()
            && !descriptor::is_socket(posix, self.inner)
        {
            // SAFETY: the set is open until `self` is dropped.
            let set = unsafe { BorrowedFd::borrow_raw(self.inner) };
            let (control, data) = (client.control().borrow(), epoll::EventData::new_u64(0));
            // Ignore errors: this fails only if the kernel has no memory for a further member of
            // the set.
            let _ = epoll::add(set, control, data, epoll::EventFlags::IN);
        }
    }
}

impl Drop for OwnedDescriptor {
    fn drop(&mut self) {
        // Ignore errors: the program may have closed the kernel descriptor itself by close(2).
        let _ = descriptor::close(self.stack.posix(), self.inner);
    }
}

/// Returns the object `number`, and keeps it alive while the result exists.
pub fn find(number: i32) -> Result<ObjectInUse> {
    OBJECTS.get(number).ok_or(Errno(libc::EBADF))
}

/// Starts a stack, and returns its number.
pub fn open(builder: Builder) -> std::result::Result<i32, StartError> {
    static AT_EXIT: Once = Once::new();
    let stack = NumberedStack::start(builder)?;
    AT_EXIT.call_once(|| {
        // SAFETY: the function has no arguments and does not unwind. If registration fails for lack
        // of memory, the stacks are not shut down at the end of the process.
        unsafe { libc::atexit(end_stacks) };
    });
    let full = || StartError::System(std::io::Error::from_raw_os_error(libc::EMFILE));
    OBJECTS.open(NumberedObject::Stack(Arc::new(stack))).ok_or_else(full)
}

/// Closes a stack with its sockets and epoll sets.
///
/// # Errors
/// ETIMEDOUT if peers have not acknowledged all data in time.
pub fn close(number: i32) -> Result<()> {
    let stack = Arc::clone(find(number)?.stack()?);
    stack.check_process()?;
    drop(OBJECTS.close(number).ok_or(Errno(libc::EBADF))?);
    // The engine, not each socket, waits for unsent data; so SO_LINGER of a socket adds no delay.
    let ended = stack.end();
    for number in OBJECTS.numbers() {
        let object = OBJECTS.get(number);
        if let Some(NumberedObject::OwnedDescriptor(member)) = object.as_deref()
            && Arc::ptr_eq(&member.stack, &stack)
        {
            drop(OBJECTS.close(number));
            member.wake_waiters();
        }
    }
    ended.map_err(|error| match error {
        ShutdownError::Unsent { .. } => Errno(libc::ETIMEDOUT),
        _ => Errno(libc::ENETDOWN),
    })
}

/// Shuts down all open stacks when the process exits, so that their data is sent.
extern "C" fn end_stacks() {
    // A panic hook may call exit(3) on the thread of an engine. The engine could not end while its
    // thread waits here.
    if EmbeddedEngine::is_current_thread() {
        return;
    }
    let stack = |number| Some(Arc::clone(OBJECTS.get(number)?.stack().ok()?));
    let stacks: Vec<_> = OBJECTS.numbers().into_iter().filter_map(stack).collect();
    let is_own = |stack: &&Arc<NumberedStack>| stack.check_process().is_ok();
    // Begin to end all stacks before waiting for the first one, so that the waiting times overlap.
    stacks.iter().filter(is_own).for_each(|stack| stack.begin_end());
    for stack in stacks.iter().filter(is_own) {
        // Ignore errors, because the exit status of the process is already set.
        let _ = stack.end();
    }
}

/// Returns whether two sockets or epoll sets belong to the same stack.
pub fn are_of_one_stack(one: &OwnedDescriptor, other: &OwnedDescriptor) -> bool {
    ptr::eq(Arc::as_ptr(&one.stack), Arc::as_ptr(&other.stack))
}
