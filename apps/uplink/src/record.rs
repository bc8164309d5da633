//! The recording of a stack's packets in a file.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use towpath_engine::Engine;
use towpath_pcap::{CaptureFile, Direction, Limits, RecordFile, SNAPLEN_DEFAULT};

/// A pcapng file into which all packets of a link go.
#[derive(Debug, Clone)]
pub struct Recording(CaptureFile);

impl Recording {
    /// Makes the file, or empties it. Its owner alone may read it: packets contain secrets.
    ///
    /// # Errors
    /// The file cannot be opened, or there are no more threads.
    pub fn start(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let limits = Limits { snaplen: SNAPLEN_DEFAULT, size: None };
        // `finish` gives the first error.
        CaptureFile::new(Box::new(RecordFile::new(file)), limits, |_| {}).map(Self)
    }

    /// The file, for [`Plan::capture`](crate::Plan::capture).
    pub fn file(&self) -> CaptureFile {
        self.0.clone()
    }

    /// Has packets recorded that `engine` drops.
    pub fn add_drops(&self, engine: &mut Engine) {
        record_drops(engine, &self.0);
    }

    /// Waits until the file is written.
    ///
    /// # Errors
    /// The first error of the file: it is incomplete.
    pub fn finish(&self) -> io::Result<()> {
        self.0.finish(|| true)
    }
}

/// Has packets that `engine` drops recorded as well, each with the reason. Interfaces of both
/// have the same numbers.
pub fn record_drops(engine: &mut Engine, file: &CaptureFile) {
    let file = file.clone();
    engine.trace_drops(move |dropped| {
        let direction = if dropped.outbound { Direction::Outbound } else { Direction::Inbound };
        let iface = dropped.interface.into();
        file.dropped(dropped.now_ns, iface, direction, dropped.reason, dropped.bytes);
    });
}
