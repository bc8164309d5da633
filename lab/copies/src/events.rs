//! Kernel breakpoints in functions of some threads: perf_event_open(2) with the event source
//! "uprobe".

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{Error, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, ensure};

use crate::functions::Functions;
use crate::ring::{Ring, SAMPLE_REGS, SAMPLE_STACK, SAMPLE_TYPE, Sample};

/// File with the number of the event source. Missing if the kernel has no such source.
const SOURCE: &str = "/sys/bus/event_source/devices/uprobe/type";

/// Fields of struct perf_event_attr (linux/perf_event.h), up to version 3 of the structure.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    /// Address of the file's path.
    config1: u64,
    /// Offset of the breakpoint in the file.
    config2: u64,
    branches: u64,
    regs: u64,
    stack: u32,
    clock: i32,
}

const _: () = assert!(size_of::<Attributes>() == 96);

/// Flags of an event: disabled until it is enabled, and inherited by new threads and processes.
const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;

const IOC_ENABLE: libc::Ioctl = 0x2400;
const IOC_DISABLE: libc::Ioctl = 0x2401;
const IOC_SET_OUTPUT: libc::Ioctl = 0x2405;

/// Breakpoints, with a ring of samples for each processor. Dropping this removes the breakpoints.
pub struct Events {
    files: Vec<File>,
    rings: Vec<Ring>,
    /// Number of samples read so far.
    samples: u64,
}

impl Events {
    /// Opens an event for each thread, function and processor that the thread may run on. Events
    /// that threads inherit require a processor.
    pub fn of(threads: &[u32], functions: &Functions) -> Result<Self> {
        let source = std::fs::read_to_string(SOURCE)
            .context("the kernel has no source of events that is named uprobe")?;
        let kind = source.trim().parse()?;
        let path = CString::new(functions.path.as_os_str().as_bytes())?;
        let mut events = Self { files: Vec::new(), rings: Vec::new(), samples: 0 };
        let mut first_of = BTreeMap::new();
        for &thread in threads {
            for processor in processors(thread)? {
                for &offset in &functions.offsets {
                    let attributes = attributes(kind, &path, offset);
                    let file = open(&attributes, thread, processor)?;
                    match first_of.get(&processor) {
                        Some(&first) => {
                            control(&file, IOC_SET_OUTPUT, first).context("a common ring")?;
                        }
                        None => {
                            first_of.insert(processor, file.as_raw_fd());
                            events.rings.push(Ring::of(&file)?);
                        }
                    }
                    events.files.push(file);
                }
            }
        }
        Ok(events)
    }

    pub fn begin(&self) -> Result<()> {
        self.files.iter().try_for_each(|file| control(file, IOC_ENABLE, 0).context("begin"))
    }

    /// Reads the samples since the last call.
    pub fn read(&mut self, of: &mut impl FnMut(Sample)) -> Result<()> {
        for ring in &mut self.rings {
            self.samples += ring.read(of)?;
        }
        Ok(())
    }

    /// Stops counting, and reads the remaining samples. Fails if the kernel lost some.
    pub fn end(mut self, of: &mut impl FnMut(Sample)) -> Result<()> {
        self.files.iter().try_for_each(|file| control(file, IOC_DISABLE, 0).context("end"))?;
        self.read(of)?;
        let mut calls = 0;
        for file in &mut self.files {
            let mut count = [0; 8];
            file.read_exact(&mut count).context("a counter")?;
            calls += u64::from_ne_bytes(count);
        }
        let samples = self.samples;
        ensure!(samples == calls, "{samples} of {calls} copies were written down");
        Ok(())
    }
}

fn attributes(kind: u32, path: &CString, offset: u64) -> Attributes {
    Attributes {
        kind,
        size: size_of::<Attributes>() as u32,
        config: 0,
        // Sample every call.
        period: 1,
        sample_type: SAMPLE_TYPE,
        read_format: 0,
        flags: DISABLED | INHERIT,
        wakeup: 0,
        breakpoint: 0,
        config1: path.as_ptr() as u64,
        config2: offset,
        branches: 0,
        regs: SAMPLE_REGS,
        stack: SAMPLE_STACK,
        clock: 0,
    }
}

fn open(attributes: &Attributes, thread: u32, processor: usize) -> Result<File> {
    const NO_GROUP: i32 = -1;
    const CLOEXEC: u64 = 8;
    let (thread, processor) = (i32::try_from(thread)?, i32::try_from(processor)?);
    // SAFETY: `size` is the size of the attributes. The caller keeps the attributes and their path
    // alive during the call.
    let fd = unsafe {
        let number = libc::SYS_perf_event_open;
        libc::syscall(number, &raw const *attributes, thread, processor, NO_GROUP, CLOEXEC)
    };
    if fd < 0 {
        let error = Error::last_os_error();
        return Err(error).context("perf_event_open with uprobe (root is needed)");
    }
    // SAFETY: the kernel has just created the descriptor, so that it has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) };
    Ok(File::from(fd))
}

fn control(file: &File, request: libc::Ioctl, value: i32) -> Result<(), Error> {
    // SAFETY: these requests take a number and no address.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, value) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// Returns the processors that a thread may run on.
fn processors(thread: u32) -> Result<Vec<usize>> {
    // SAFETY: a cpu_set_t is an array of integers, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let thread = i32::try_from(thread)?;
    // SAFETY: the pointer and length describe `set`.
    let result = unsafe { libc::sched_getaffinity(thread, size_of_val(&set), &raw mut set) };
    ensure!(result == 0, "thread {thread}: {}", Error::last_os_error());
    let all = 0..8 * size_of_val(&set);
    // SAFETY: `processor` is less than the number of bits of the set.
    Ok(all.filter(|&processor| unsafe { libc::CPU_ISSET(processor, &set) }).collect())
}
