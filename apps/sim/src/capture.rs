//! Writes a pcapng file with virtual timestamps for each link.

use std::fs::File;
use std::path::{Path, PathBuf};

use towpath_pcap::{CaptureLinkType, Direction, Interface, Writer};

use crate::scenario::Plan;

/// Capture files of a run. Each link records a packet once, when it is delivered or dropped. The
/// comment of a dropped packet contains the reason.
pub struct Captures {
    files: Vec<HostCapture>,
    failure: Option<String>,
}

struct HostCapture {
    path: PathBuf,
    writer: Writer<File>,
}

impl Captures {
    /// Creates the directory `folder`, and a capture file in it for each link.
    ///
    /// # Errors
    /// Returns the path that could not be created, with the reason.
    pub fn create(folder: &Path, plan: &Plan, seed: u64) -> Result<Self, String> {
        let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
        let mut files = Vec::new();
        for link in &plan.links {
            let ends = link.ends.map(|end| plan.name_of(end));
            let names = [format!("{}>{}", ends[0], ends[1]), format!("{}>{}", ends[1], ends[0])];
            let variant =
                if plan.variant.is_empty() { String::new() } else { format!("-{}", plan.variant) };
            let path =
                folder.join(format!("{}{variant}-{seed}.pcapng", link.name).replace(' ', "_"));
            let interfaces = names
                .each_ref()
                .map(|name| Interface { name, link_type: CaptureLinkType::Ethernet });
            let file = File::create(&path).map_err(|error| failed(&path, error))?;
            let writer = Writer::new(file, &interfaces).map_err(|error| failed(&path, error))?;
            files.push(HostCapture { path, writer });
        }
        Ok(Self { files, failure: None })
    }

    /// Records a packet that wire number `wire` delivered.
    pub fn delivered(&mut self, wire: usize, now_ns: u64, frame: &[u8]) {
        self.packet(wire, now_ns, None, frame);
    }

    /// Records a packet that wire number `wire` dropped.
    pub fn dropped(&mut self, wire: usize, now_ns: u64, reason: &str, frame: &[u8]) {
        self.packet(wire, now_ns, Some(&format!("drop: {reason}")), frame);
    }

    fn packet(&mut self, wire: usize, now_ns: u64, comment: Option<&str>, frame: &[u8]) {
        let Some(capture) = self.files.get_mut(wire / 2).filter(|_| self.failure.is_none()) else {
            return;
        };
        let direction =
            if wire.is_multiple_of(2) { Direction::Outbound } else { Direction::Inbound };
        let (iface, len) = ((wire % 2) as u32, frame.len() as u32);
        let written = capture.writer.packet(iface, now_ns, direction, comment, &[frame], len);
        if let Err(error) = written {
            self.failure = Some(format!("{}: {error}", capture.path.display()));
        }
    }

    /// Flushes all capture files.
    ///
    /// # Errors
    /// Returns an error message for the first file that could not be written.
    pub fn finish(self) -> Result<(), String> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        for HostCapture { path, writer } in self.files {
            writer.into_inner().map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }
}
