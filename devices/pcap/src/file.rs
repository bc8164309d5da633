//! Capture files that contain only complete pcapng blocks, even if the disk is full.

use std::fs::File;
use std::io::{self, Write};

/// Capture file. If a write fails, the file is truncated to its last complete block, because
/// readers reject a file with a truncated packet.
#[derive(Debug)]
pub struct RecordFile {
    file: File,
    /// Length in bytes of the complete blocks in the file.
    len: u64,
}

impl RecordFile {
    /// Creates the writer for an empty file that is open for writing.
    pub fn new(file: File) -> Self {
        Self { file, len: 0 }
    }
}

impl Write for RecordFile {
    /// Writes complete blocks to the file.
    fn write(&mut self, blocks: &[u8]) -> io::Result<usize> {
        let mut written = 0;
        while written < blocks.len() {
            let error = match self.file.write(&blocks[written..]) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(count) => {
                    written += count;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            self.len += whole(&blocks[..written]) as u64;
            // Ignore the error: a FIFO cannot be truncated, and its reader already has the bytes.
            let _ = self.file.set_len(self.len);
            return Err(error);
        }
        self.len += blocks.len() as u64;
        Ok(blocks.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Returns the total length of the complete blocks at the start of `bytes`. In a block, the length
/// follows the type.
fn whole(bytes: &[u8]) -> usize {
    let mut end = 0;
    while let Some(&[a, b, c, d]) = bytes.get(end + 4..end + 8) {
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        if len == 0 || len > bytes.len() - end {
            break;
        }
        end += len;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CaptureLinkType, Direction, Interface, Writer};

    #[test]
    fn whole_blocks_are_counted_wherever_the_bytes_end() {
        let interface = Interface { name: "eth0", link_type: CaptureLinkType::Ethernet };
        let mut writer = Writer::new(Vec::new(), &[interface]).unwrap();
        let mut ends = vec![0, 60, writer.len() as usize];
        for len in [1, 60, 1500] {
            writer.packet(0, 0, Direction::Inbound, None, &[&vec![7; len]], len as u32).unwrap();
            ends.push(writer.len() as usize);
        }
        let bytes = writer.into_inner().unwrap();
        // The first block of the file is the section header.
        ends[1] = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        for len in 0..=bytes.len() {
            let wanted = ends.iter().copied().filter(|end| *end <= len).max();
            assert_eq!(Some(whole(&bytes[..len])), wanted, "{len}");
        }
        assert_eq!(whole(&[0; 64]), 0);
    }

    /// Tests a write that succeeds partially and then fails, as on a full disk.
    #[test]
    fn a_file_that_cannot_grow_ends_behind_a_whole_block() {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let interface = Interface { name: "eth0", link_type: CaptureLinkType::Ethernet };
        let mut writer = Writer::new(Vec::new(), &[interface]).unwrap();
        for _ in 0..10 {
            writer.packet(0, 0, Direction::Inbound, None, &[&[7; 1000]], 1000).unwrap();
        }
        let blocks = writer.into_inner().unwrap();
        let memory = memfd_create("capture", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, 8192).unwrap();
        fcntl_add_seals(&memory, SealFlags::GROW).unwrap();
        let file = File::from(memory);
        let mut output = RecordFile::new(file.try_clone().unwrap());
        output.write(&blocks).unwrap_err();
        let len = file.metadata().unwrap().len() as usize;
        assert!((6000..=8192).contains(&len) && whole(&blocks[..len]) == len, "{len}");

        let full = File::options().write(true).open("/dev/full").unwrap();
        let error = RecordFile::new(full).write(&[0; 64]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
