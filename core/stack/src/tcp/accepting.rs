//! Options of listeners, and of sockets that may listen later: Fast Open and TCP_SAVE_SYN.

use towpath_tcp::FastOpenKeys;

use crate::error::OptionError;
use crate::host::{Host, SocketId};
use crate::options::SocketOption;
use crate::ports::bind_addr::PortProtocol;
use crate::settings::StreamSettings;
use crate::socket::SocketRole;
use crate::stack::Stack;

impl<H: Host> Stack<H> {
    /// Sets an option of listeners or sockets that may listen later.
    pub(crate) fn set_accepting(
        &mut self,
        index: u32,
        option: SocketOption,
    ) -> Result<(), OptionError> {
        let socket = self.sockets.get_mut(index).ok_or(OptionError::NoSocket)?;
        let settings: &mut StreamSettings = match &mut socket.kind {
            SocketRole::Fresh(settings) => settings,
            SocketRole::Listener(listener) => &mut listener.settings,
            _ => return Err(OptionError::NotApplicable),
        };
        match option {
            SocketOption::FastOpenQueue(places) => settings.fast_open_queue = places,
            SocketOption::FastOpenKeys(keys) => settings.tcp.fast_open_keys = Some(keys),
            SocketOption::SaveSyn(on) => settings.save_syn = on,
            _ => return Err(OptionError::NotApplicable),
        }
        if let SocketRole::Listener(_) = socket.kind {
            // Notify all shards (stacks of this host), because any of them may accept connections
            // for this listener.
            self.in_order(PortProtocol::Tcp, index, 0, |_| true);
        }
        Ok(())
    }

    /// Returns the keys of the Fast Open cookies of a socket that listens or may listen.
    pub fn fast_open_keys(&self, id: SocketId) -> Option<FastOpenKeys> {
        let settings: &StreamSettings = match &self.sockets.get(self.index(id)?)?.kind {
            SocketRole::Fresh(settings) => settings,
            SocketRole::Listener(listener) => &listener.settings,
            _ => return None,
        };
        Some(self.fast_opens.keys_of(settings))
    }
}
