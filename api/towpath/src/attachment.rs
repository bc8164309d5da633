//! The attachment of this process to an engine, with the tables that belong to it.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use towpath_client::{Client, Error, Process, Region, Socket};
use towpath_shm::Fd;
use towpath_shm::token::Run;

/// A [`Client`] and the [`Process`] that it was made with, which end together.
///
/// `Client` has `&'static Process`, and so has every [`HighFd`](towpath_client::HighFd) and
/// [`Cloned`](towpath_client::Cloned) that is made with it. No value of these types leaves this
/// crate, nor is kept anywhere but in a value that holds the [`Shared`](crate::shared::Shared)
/// around this attachment.
#[derive(Debug)]
pub(crate) struct Attachment {
    client: ManuallyDrop<Client>,
    process: NonNull<Process>,
}

// SAFETY: `process` is a Box that only `drop` uses as such; `Process` and `Client` are Send and
// Sync.
unsafe impl Send for Attachment {}
// SAFETY: as above.
unsafe impl Sync for Attachment {}

impl Attachment {
    /// Says hello on a control socket, whose engine must be running.
    ///
    /// # Errors
    /// As [`Client::attach`].
    pub fn new(control: Fd) -> Result<Self, Error> {
        let process = NonNull::from(Box::leak(Process::on_heap()));
        // SAFETY: the box lives until `drop`, or the error below, has dropped the client.
        let forever: &'static Process = unsafe { process.as_ref() };
        // A stack that was just made has no sockets.
        let none = None::<fn(&Region, Run) -> Vec<Socket>>;
        match Client::attach(forever, control, none) {
            Ok(client) => Ok(Self { client: ManuallyDrop::new(client), process }),
            Err(error) => {
                // SAFETY: `attach` has dropped all that it made.
                unsafe { free(process) };
                Err(error)
            }
        }
    }

    #[inline]
    pub fn client(&self) -> &Client {
        &self.client
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // SAFETY: dropped here alone, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.client) };
        // SAFETY: the client was the last one to have it.
        unsafe { free(self.process) };
    }
}

/// # Safety
/// `process` must come from [`Process::on_heap`], and have no other user any more.
unsafe fn free(process: NonNull<Process>) {
    // SAFETY: the caller's promise.
    unsafe { process.as_ref() }.close();
    // SAFETY: as above; the reference has ended.
    drop(unsafe { Box::from_raw(process.as_ptr()) });
}
