//! Connection of this process to an engine, with the tables of the process that the connection
//! uses.

use std::mem::ManuallyDrop;

use towpath_client::{Client, Error, MappedProcess, Process, Region, Socket};
use towpath_shm::Fd;
use towpath_shm::token::Run;

/// A [`Client`] of an engine with the [`Process`] tables that it uses; both are dropped together.
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
    /// Connects to an engine by its control socket. The engine must already be running, because
    /// this call waits for its reply.
    ///
    /// # Errors
    /// As for [`Client::attach`] and [`MappedProcess::new`].
    pub fn new(control: Fd) -> Result<Self, Error> {
        let process = MappedProcess::new()?;
        // SAFETY: `process` is mapped until the client, the only user of this reference, is
        // dropped. Either `drop` or the error path below closes it afterwards.
        let forever: &'static Process = unsafe { &*std::ptr::from_ref(&*process) };
        // Pass no function that lists sockets, because a new stack has none.
        let none = None::<fn(&Region, Run) -> Vec<Socket>>;
        match Client::attach(forever, control, none) {
            Ok(client) => Ok(Self { client: ManuallyDrop::new(client), process }),
            Err(error) => {
                // The failed `attach` has dropped everything that refers to the tables, so they can
                // be unmapped.
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
        // Safe to unmap the process tables, because the client was their last user.
        self.process.close();
    }
}
