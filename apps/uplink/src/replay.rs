//! Starts replays of capture files, and reports when they have ended.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};

use towpath_engine::Remote;
use towpath_replay::{Counters, Replay, ReplayStats, Start};
use towpath_stack::{DropReason, ReceiverChange, ReceiverWatch};

/// Observer that starts a replay when the stack's first socket can receive packets. Packets
/// replayed earlier, while the program still starts, would be lost.
#[derive(Debug)]
pub(crate) struct StartWatch(pub Start);

impl ReceiverWatch for StartWatch {
    fn on_change(&self, change: &ReceiverChange) {
        if change.takes.is_some_and(|at| !at.is_loopback()) {
            self.0.start();
        }
    }
}

/// Waits on a thread for the end of a replay. Then tells the user how many packets the stack has
/// received.
#[derive(Debug)]
pub struct ReplayEnd {
    file: PathBuf,
    stats: ReplayStats,
    ended: Receiver<()>,
}

impl ReplayEnd {
    pub(crate) fn of(replay: &mut Replay, file: &Path) -> Self {
        let (sender, ended) = mpsc::channel();
        // Ignore errors: sending fails only if the thread that waits for the end of the replay has
        // ended.
        replay.on_end(move || _ = sender.send(()));
        Self { file: file.to_owned(), stats: replay.stats(), ended }
    }

    /// Waits until the stack has received the last packet of the replay, and returns a message for
    /// the user. Returns `None` if the engine of `remote` ended before.
    pub fn wait(self, remote: &Remote) -> Option<String> {
        self.ended.recv().ok()?;
        // The reply arrives after the iteration of the event loop in which the stack receives the
        // last packet. If the engine is ending, it does not reply.
        let drops = remote.counters().map(|counters| counters.drops).unwrap_or_default();
        let received = DropReason::ALL.iter().filter(|reason| !reason.is_outbound());
        let names: Vec<_> = received.map(|reason| reason.as_str()).collect();
        let drops = drops.into_iter().filter(|(name, n)| *n > 0 && names.contains(name));
        Some(sentence(&self.file, &self.stats.counters(), &drops.collect::<Vec<_>>()))
    }
}

/// Formats the message about the packets of a capture. `drops` are the numbers of packets that the
/// stack dropped, by reason.
fn sentence(file: &Path, counters: &Counters, drops: &[(&str, u64)]) -> String {
    let named = |all: &[(&str, u64)]| {
        let words = all.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}"));
        words.collect::<Vec<_>>().join(", ")
    };
    let sum = |all: &[(&str, u64)]| all.iter().map(|(_, n)| *n).sum::<u64>();
    let mut text = format!("{} packets of {} have come", counters.rx_packets, file.display());
    if !drops.is_empty() {
        text += &format!(", of which the stack dropped {} ({})", sum(drops), named(drops));
    }
    let left_out = [
        ("not IP", counters.rx_not_ip),
        ("recorded in part", counters.rx_truncated),
        ("repeated because dropped", counters.rx_drop_records),
    ];
    if sum(&left_out) > 0 {
        text += &format!("; {} records were passed over ({})", sum(&left_out), named(&left_out));
    }
    if counters.rx_malformed > 0 {
        text += "; the rest of the file is cut off or malformed";
    }
    if drops.iter().any(|(name, _)| name.ends_with("checksum")) {
        text += "; a capture of the sending machine lacks checksums, which `tcprewrite --fixcsum` \
                 computes";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_says_what_became_of_the_packets() {
        let file = Path::new("a.pcap");
        let mut counters = Replay::new(std::io::Cursor::new(HEADER)).unwrap().stats().counters();
        counters.rx_packets = 16;
        assert_eq!(sentence(file, &counters, &[]), "16 packets of a.pcap have come");
        (counters.rx_truncated, counters.rx_not_ip, counters.rx_malformed) = (3, 1, 1);
        let text = sentence(file, &counters, &[("udp_no_socket", 2), ("transport_checksum", 6)]);
        assert_eq!(
            text,
            "16 packets of a.pcap have come, of which the stack dropped 8 (udp_no_socket 2, \
             transport_checksum 6); 4 records were passed over (not IP 1, recorded in part 3); \
             the rest of the file is cut off or malformed; a capture of the sending machine lacks \
             checksums, which `tcprewrite --fixcsum` computes"
        );
    }

    /// Header of a pcap file that contains Ethernet frames.
    const HEADER: [u8; 24] =
        [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];
}
