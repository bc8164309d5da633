//! Implements `--pcap`: opens the capture file, and reports problems to the user.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use towpath_pcap::{CaptureFile, Limits, RecordFile, Warning};

use crate::error::{ExitCode, Failure};
use crate::messages::Messages;

/// Returns whether the path of `--pcap` means standard output.
pub fn is_output(path: &Path) -> bool {
    path == Path::new("-")
}

/// Opens the capture file of `--pcap`. If it is a FIFO, waits for a reader (fifo(7)).
pub fn open(path: &Path) -> Result<Box<dyn Write + Send>> {
    if is_output(path) {
        if rustix::termios::isatty(rustix::stdio::stdout()) {
            let why = "--pcap -: standard output is a terminal, which cannot show packets: add | \
                       tcpdump -r -";
            return Err(Failure::error(ExitCode::Failed, why));
        }
        return Ok(Box::new(Output));
    }
    // Only this user may read the file, because packets contain confidential data.
    let file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let file = file.with_context(|| format!("--pcap {}", path.display()))?;
    Ok(Box::new(RecordFile::new(file)))
}

/// Standard output as a writer. std's writer cannot be used, because it fails if O_NONBLOCK is set:
/// see [`crate::output::write_all`].
struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        crate::output::write_all(rustix::stdio::stdout(), bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the capture with limits on bytes per packet and on bytes of the file. 0 means no limit.
pub fn start(
    (snaplen, size): (u32, u64),
    out: Box<dyn Write + Send>,
    messages: Messages,
) -> Result<CaptureFile> {
    let limits = Limits { snaplen, size: Some(size).filter(|size| *size > 0) };
    let tell = move |trouble| match trouble {
        Warning::Slow => messages.post(
            "the capture is not written as fast as packets come: some are missing in it; \
             --pcap-snaplen 128 records headers only",
        ),
        Warning::Full => messages.post(&format!(
            "the capture has reached {size} bytes, further packets are not recorded (--pcap-size)"
        )),
        Warning::Failed(why) => {
            messages.put_error(&format!("the capture is incomplete from here on: {why}"));
        }
        _ => {}
    };
    CaptureFile::new(out, limits, tell).context("--pcap")
}

/// Waits until all packets are written, while `go_on` returns true. Tells the user if packets are
/// missing. Returns false if writing the file failed, which was reported when it happened.
pub fn finish(capture: &CaptureFile, messages: &Messages, go_on: impl FnMut() -> bool) -> bool {
    let is_written = match capture.finish(go_on) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            messages.put_error("the capture is incomplete: its end was not waited for");
            true
        }
        Err(_) => false,
    };
    let lost = capture.lost();
    if lost > 0 {
        messages.put_error(&format!("{lost} packets are missing in the capture"));
    }
    is_written
}

/// Returns an error if the capture is incomplete. Otherwise a script would assume that it is
/// complete.
///
/// # Errors
/// Fails if `is_recorded` is false.
pub fn check(is_recorded: bool) -> Result<()> {
    let error = || Failure::error(ExitCode::Failed, "the capture (--pcap) is incomplete");
    is_recorded.then_some(()).ok_or_else(error)
}
