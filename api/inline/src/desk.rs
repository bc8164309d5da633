//! The thread that answers `towpath run`.

use std::thread::Builder;

use towpath_client::syscall::SignalsBlocked;
use towpath_engine::Remote;
use towpath_uplink::{LaunchMessage, LaunchSocket, Said, set_engine_mtu};

/// Starts the thread. Without one towpath gets no answers, and all else goes on.
pub fn start(home: LaunchSocket, remote: Remote) {
    // The program's handlers run on its own threads.
    let _signals = SignalsBlocked::new();
    let _ = Builder::new().name("towpath-desk".into()).spawn(move || answer(&home, &remote));
}

/// Until towpath has gone, which ends the run.
fn answer(home: &LaunchSocket, remote: &Remote) {
    while let Ok(Some(asked)) = home.hear() {
        match asked {
            // An engine that has ended has no sockets.
            LaunchMessage::Sockets => {
                // If towpath has ended meanwhile, the next `hear` says so.
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
