//! Records a stack's packets in a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use towpath_engine::Engine;
use towpath_pcap::{CaptureFile, Direction, Limits, RecordFile, SNAPLEN_DEFAULT};

/// A pcapng file in which all packets of a link are recorded.
#[derive(Debug, Clone)]
pub struct Recording(CaptureFile);

impl Recording {
    /// Creates or truncates the capture file. Only its owner may read it, because packets may
    /// contain secrets. If the path is a FIFO, waits for its reader.
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
    pub fn create(path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).open(path)
    }

    /// Starts the thread that writes packets to `file`. The thread inherits the signal mask of the
    /// calling thread.
    ///
    /// # Errors
    /// Fails if no thread can be created.
    pub fn start(file: File) -> io::Result<Self> {
        let limits = Limits { snaplen: SNAPLEN_DEFAULT, size: None };
        // Ignore errors of writing here, because `finish` returns the first one.
        CaptureFile::new(Box::new(RecordFile::new(file)), limits, |_| {}).map(Self)
    }

    /// Returns the capture file, to be set as [`Plan::capture`](crate::Plan::capture).
    pub fn file(&self) -> CaptureFile {
        self.0.clone()
    }

    /// Also records packets that the stack of `engine` drops.
    pub fn add_drops(&self, engine: &mut Engine) {
        record_drops(engine, &self.0);
    }

    /// Waits until all recorded packets are written to the file.
    ///
    /// # Errors
    /// Returns the first error of writing the file. The file is then incomplete.
    pub fn finish(&self) -> io::Result<()> {
        self.0.finish(|| true)
    }
}

/// Records packets that the stack of `engine` drops, each with the reason. An interface must have
/// the same number in the capture and in the engine.
pub fn record_drops(engine: &mut Engine, file: &CaptureFile) {
    let file = file.clone();
    engine.trace_drops(move |dropped| {
        let direction = if dropped.outbound { Direction::Outbound } else { Direction::Inbound };
        let iface = dropped.interface.into();
        file.dropped(dropped.now_ns, iface, direction, dropped.reason, dropped.bytes);
    });
}
