//! The attachment of this process to an engine, with the tables that belong to it.

use std::mem::ManuallyDrop;

use towpath_client::{Client, Error, MappedProcess, Process, Region, Socket};
use towpath_shm::Fd;
use towpath_shm::token::Run;

/// A [`Client`] and the [`Process`] that it was made with, which end together.
///
/// `Client` has `&'static Process`, and so has every [`HighFd`](towpath_client::HighFd) and
/// [`Cloned`](towpath_client::Cloned) that is made with it. No value of these types leaves this
/// crate, nor is kept anywhere but in a value that holds the
/// [`SharedStack`](crate::shared::SharedStack) around this attachment.
#[derive(Debug)]
pub(crate) struct Attachment {
    client: ManuallyDrop<Client>,
    process: MappedProcess,
}

impl Attachment {
    /// Says hello on a control socket, whose engine must be running.
    ///
    /// # Errors
    /// As [`Client::attach`], and [`MappedProcess::new`].
    pub fn new(control: Fd) -> Result<Self, Error> {
        let process = MappedProcess::new()?;
        // SAFETY: the mapping lives until `drop`, or the error below, has dropped the client.
        let forever: &'static Process = unsafe { &*std::ptr::from_ref(&*process) };
        // A stack that was just made has no sockets.
        let none = None::<fn(&Region, Run) -> Vec<Socket>>;
        match Client::attach(forever, control, none) {
            Ok(client) => Ok(Self { client: ManuallyDrop::new(client), process }),
            Err(error) => {
                // `attach` has dropped all that it made.
                process.close();
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
        // The client was the last one to have it.
        self.process.close();
    }
}
