//! Handlers that several tests use.

use towpath::handler::{Conn, ConnAction, Handler};

/// Sends back what arrives.
pub struct Echo;

impl Handler for Echo {
    type State = ();

    fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
        let (mut reader, mut writer) = conn.split();
        writer.forward(&mut reader);
        if reader.is_empty() { ConnAction::Continue } else { ConnAction::AwaitRoom }
    }
}

/// A handler made of a closure for `readable`.
pub struct OnBytes<F>(pub F);

impl<F> Handler for OnBytes<F>
where
    F: FnMut(&mut Conn<'_>) -> ConnAction + Send + 'static,
{
    type State = ();

    fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
        self.0(conn)
    }
}
