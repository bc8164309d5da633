//! The attachment of this process to an engine, with the process tables that it needs.

use std::mem::ManuallyDrop;

use towpath_client::{Client, Error, MappedProcess, Process, Region, Socket};
use towpath_shm::Fd;
use towpath_shm::token::Run;

/// A [`Client`] with its own [`Process`]; both end together.
///
/// `Client` contains a `&'static Process`, and so does every [`HighFd`](towpath_client::HighFd) and
/// [`Cloned`](towpath_client::Cloned) created from it. No value of these types leaves this crate.
/// All are stored only in values that hold the [`SharedStack`](crate::shared::SharedStack) with
/// this attachment.
#[derive(Debug)]
pub(crate) struct Attachment {
    client: ManuallyDrop<Client>,
    process: MappedProcess,
}

impl Attachment {
    /// Attaches to the engine by its control socket. The engine must be running, so that it
    /// answers.
    ///
    /// # Errors
    /// As for [`Client::attach`] and [`MappedProcess::new`].
    pub fn new(control: Fd) -> Result<Self, Error> {
        let process = MappedProcess::new()?;
        // SAFETY: the mapping is valid until `drop`, or the error path below, has dropped the
        // client.
        let forever: &'static Process = unsafe { &*std::ptr::from_ref(&*process) };
        // A new stack has no sockets.
        let none = None::<fn(&Region, Run) -> Vec<Socket>>;
        match Client::attach(forever, control, none) {
            Ok(client) => Ok(Self { client: ManuallyDrop::new(client), process }),
            Err(error) => {
                // `attach` has dropped everything that it created.
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
        // SAFETY: the client is dropped only here, and is not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.client) };
        // The client was the last user of the process tables.
        self.process.close();
    }
}
