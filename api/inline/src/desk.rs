//! Thread that answers messages of `towpath run`, which has started this process.

use std::thread::Builder;

use towpath_client::syscall::SignalsBlocked;
use towpath_engine::Remote;
use towpath_uplink::{LaunchMessage, LaunchSocket, Said, set_engine_mtu};

/// Starts the thread that answers messages of `towpath run`. If that fails, towpath gets no
/// replies, but the engine works.
pub fn start(home: LaunchSocket, remote: Remote) {
    // Block signals, because the program's handlers must run on the program's threads.
    let _signals = SignalsBlocked::new();
    let _ = Builder::new().name("towpath-desk".into()).spawn(move || answer(&home, &remote));
}

/// Answers messages until `towpath run` has ended and closed the socket.
fn answer(home: &LaunchSocket, remote: &Remote) {
    while let Ok(Some(asked)) = home.hear() {
        match asked {
            // If the engine has ended, the list of sockets is empty.
            LaunchMessage::Sockets => {
                // Ignore errors: if towpath has ended, the next call of `hear` returns the error.
                let _ = home.say_sockets(&remote.sockets().unwrap_or_default());
            }
            LaunchMessage::Unsent => {
                let left = remote.left().map_or(0, |left| left.unsent);
                home.mention(&Said::Unsent(left));
            }
            LaunchMessage::SetMtu(mtu) => set_engine_mtu(remote, mtu),
            LaunchMessage::Stop => remote.stop(),
        }
    }
}
