//! Ring of samples in memory shared with the kernel, one ring per processor.

use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};

/// Contents of a sample: process and thread, registers, and the top of the stack, which is the
/// return address of the call.
pub const SAMPLE_TYPE: u64 = TID | REGS_USER | STACK_USER;
const TID: u64 = 1 << 1;
const REGS_USER: u64 = 1 << 12;
const STACK_USER: u64 = 1 << 13;
/// Register rdx of x86-64, the third argument (PERF_REG_X86_DX of asm/perf_regs.h).
pub const SAMPLE_REGS: u64 = 1 << 3;
/// Number of sampled stack bytes.
pub const SAMPLE_STACK: u32 = 8;

/// A call of a copying function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub process: u32,
    pub thread: u32,
    /// Bytes to copy.
    pub len: u64,
    /// Return address; zero if the kernel could not read the stack.
    pub caller: u64,
}

/// Bytes of the ring for samples, a power of two. A sample takes 64 bytes.
const DATA: usize = 16 << 20;
/// Page size in bytes. The first page of the ring has a header instead of samples.
const PAGE: usize = 4096;

/// Offsets of the positions in struct perf_event_mmap_page (linux/perf_event.h).
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// Types of records: number of lost samples, and a sample.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;

pub struct Ring {
    base: NonNull<u8>,
}

impl Ring {
    pub fn of(event: &File) -> Result<Self> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: creates a new mapping at an address that the kernel chooses.
        let at = unsafe {
            let len = PAGE + DATA;
            libc::mmap(std::ptr::null_mut(), len, access, flags, event.as_raw_fd(), 0)
        };
        ensure!(at != libc::MAP_FAILED, "a ring: {}", Error::last_os_error());
        Ok(Self { base: NonNull::new(at.cast()).context("mmap")? })
    }

    /// Reads all available samples, and returns their number.
    pub fn read(&mut self, of: &mut impl FnMut(Sample)) -> Result<u64> {
        // The kernel writes a record before it moves the head.
        let head = self.word(DATA_HEAD).load(Ordering::Acquire);
        let mut tail = self.word(DATA_TAIL).load(Ordering::Relaxed);
        let mut samples = 0;
        while tail < head {
            let (kind, len) = header(self.u64_at(tail));
            ensure!(len >= 8 && len % 8 == 0 && len <= head - tail, "a record of {len} bytes");
            ensure!(kind != LOST, "the ring of {DATA} bytes was full");
            if kind == SAMPLE {
                let words = (1..len / 8).map(|n| self.u64_at(tail + 8 * n));
                of(parse(words).context("a sample is too short")?);
                samples += 1;
            }
            tail += len;
        }
        // Release the space only after the records were read, because the kernel may overwrite them
        // then.
        self.word(DATA_TAIL).store(tail, Ordering::Release);
        Ok(samples)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < PAGE, "{at} is not in the first page");
        // SAFETY: the address is in the first page, which is mapped while `self` lives, and aligned
        // to 8 bytes.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// Reads eight bytes of the samples at a position that wraps around.
    fn u64_at(&self, at: u64) -> u64 {
        let at = (at % DATA as u64) as usize;
        assert!(at.is_multiple_of(8), "records are aligned");
        // SAFETY: the address is within the samples' part of the mapping, and aligned. The kernel
        // does not write between tail and head.
        unsafe { self.base.as_ptr().add(PAGE + at).cast::<u64>().read_volatile() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `of` created the mapping, and no references to it are left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), PAGE + DATA) };
    }
}

/// Returns type and length of a record: u32 type, u16 flags, u16 length.
fn header(word: u64) -> (u32, u64) {
    (word as u32, word >> 48)
}

/// Parses the words of a sample after its header.
fn parse(mut words: impl Iterator<Item = u64>) -> Option<Sample> {
    let ids = words.next()?;
    // The first word is the ABI of the registers; 0 if the kernel could not read them.
    let has_registers = words.next()? != 0;
    let len = if has_registers { words.next()? } else { 0 };
    // The stack: its size, its bytes, and the number of bytes that were read.
    let stack = words.next()?;
    let (top, seen) = if stack > 0 { (words.next()?, words.next()?) } else { (0, 0) };
    let caller = if seen == u64::from(SAMPLE_STACK) { top } else { 0 };
    Some(Sample { process: ids as u32, thread: (ids >> 32) as u32, len, caller })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_says_who_copied_how_much() {
        let words = [7 | 9 << 32, 2, 1448, 8, 0xabc, 8];
        let sample = Sample { process: 7, thread: 9, len: 1448, caller: 0xabc };
        assert_eq!(parse(words.into_iter()), Some(sample));
        // A stack that could not be read, and a sample without a stack.
        let caller = |words: &[u64]| parse(words.iter().copied()).map(|it| it.caller);
        assert_eq!(caller(&[7, 2, 1448, 8, 0xabc, 0]), Some(0));
        assert_eq!(caller(&[7, 2, 1448, 0]), Some(0));
        assert_eq!(caller(&[7, 2, 1448]), None);
    }

    #[test]
    fn a_header_is_kind_flags_and_length() {
        assert_eq!(header(9 | 2 << 32 | 64 << 48), (SAMPLE, 64));
    }
}
