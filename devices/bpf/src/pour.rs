//! Makes the kernel generate traffic for measurements.

use std::io;
use std::os::fd::AsFd;

use towpath_shm::Fd;

use crate::assembler::{BpfAssembler, Op, Reg};
use crate::sys::{self, Kind};

/// Number of the helper function bpf_redirect (bpf-helpers(7)).
const BPF_FUNC_REDIRECT: i32 = 23;

/// A program that makes the kernel send frames on an interface, without a socket.
#[derive(Debug)]
pub struct Pour(Fd);

impl Pour {
    /// Creates a traffic source that sends on the interface with this index.
    ///
    /// # Errors
    /// Returns EPERM without CAP_BPF and CAP_NET_ADMIN.
    pub fn new(interface: u32) -> io::Result<Self> {
        let mut program = BpfAssembler::default();
        program.constant(Reg::R1, interface.into());
        program.alu(Op::Move, Reg::R2, 0);
        program.call(BPF_FUNC_REDIRECT);
        program.exit();
        Ok(Self(sys::load(Kind::Xdp, &program.finish())?))
    }

    /// Sends `count` copies of a frame. The interface drops frames that do not fit in its queue.
    ///
    /// # Errors
    /// Returns EINVAL before Linux 5.18.
    pub fn frames(&self, frame: &[u8], count: u32) -> io::Result<()> {
        sys::run_live(self.0.as_fd(), frame, count)
    }
}
