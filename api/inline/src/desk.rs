//! The thread that handles messages of `towpath run`.

use std::thread::Builder;

use towpath_client::syscall::SignalsBlocked;
use towpath_engine::Remote;
use towpath_uplink::{LaunchMessage, LaunchSocket, Said, set_engine_mtu};

/// Starts the thread. If that fails, towpath gets no replies, but everything else works.
pub fn start(home: LaunchSocket, remote: Remote) {
    // Block signals, because the program's handlers must run on the program's threads.
    let _signals = SignalsBlocked::new();
    let _ = Builder::new().name("towpath-desk".into()).spawn(move || answer(&home, &remote));
}

/// Handles messages until towpath ends, which ends the run.
fn answer(home: &LaunchSocket, remote: &Remote) {
    while let Ok(Some(asked)) = home.hear() {
        match asked {
            // An engine that has ended has no sockets.
            LaunchMessage::Sockets => {
                // Ignore errors: if towpath has ended, the next `hear` notices.
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
