//! An event handler on the thread of the stack.

use towpath::handler::{Conn, ConnAction, Handler};

pub struct Echo;

impl Handler for Echo {
    type State = ();

    fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
        let (mut reader, mut writer) = conn.split();
        writer.forward(&mut reader);
        // Without room for all bytes, the handler is called again when there is more.
        if reader.is_empty() { ConnAction::Continue } else { ConnAction::AwaitRoom }
    }
}
