//! BPF instructions (RFC 9669): the subset that the programs of this crate and of device ports
//! need.
//!
//! Arithmetic is on 64 bits. Jumps are forward only: [`BpfAssembler::jump_if`] emits a jump without
//! a target, and [`BpfAssembler::land`] sets the target.

use std::os::fd::{AsRawFd, BorrowedFd};

/// An instruction in the format of bpf(2) (`struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct BpfInstruction {
    code: u8,
    /// Destination register in the lower half and source in the upper half; swapped on big-endian
    /// machines (RFC 9669 §3.1).
    registers: u8,
    offset: i16,
    immediate: i32,
}

const _: () = assert!(size_of::<BpfInstruction>() == 8);

/// A BPF register. Instructions that load from the packet expect the packet in `R6`, and overwrite
/// `R0` to `R5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "registers are called by their numbers")]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    /// Read-only pointer to the end of the program's stack, which has 512 bytes.
    Frame,
}

/// Operation of an arithmetic BPF instruction, with its opcode bits.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "each has the name of its operation")]
pub enum Op {
    Add = 0x00,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Xor = 0xa0,
    Move = 0xb0,
}

/// Comparison of a conditional BPF jump, with its opcode bits. Comparisons are unsigned.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "each has the name of its comparison")]
pub enum If {
    Equal = 0x10,
    Greater = 0x20,
    NotEqual = 0x50,
    Less = 0xa0,
}

/// Number of bytes that a load instruction reads, with the code of the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// 4 bytes.
    Word = 0x00,
    /// 2 bytes.
    Half = 0x08,
    /// 1 byte.
    Byte = 0x10,
}

impl Size {
    fn bits(self) -> i32 {
        match self {
            Self::Word => 32,
            Self::Half => 16,
            Self::Byte => 8,
        }
    }

    /// Returns the number of bytes that a load instruction of this size loads.
    pub fn bytes(self) -> i32 {
        self.bits() / 8
    }
}

/// Second operand of an arithmetic or jump instruction.
#[derive(Debug, Clone, Copy)]
pub enum BpfOperand {
    /// The value of a register.
    Reg(Reg),
    /// A constant, sign-extended to 64 bits.
    Number(i32),
}

impl From<Reg> for BpfOperand {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<i32> for BpfOperand {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

/// A jump instruction that was emitted before its target is known.
#[derive(Debug)]
#[must_use]
pub struct Jump(usize);

// Instruction classes of BPF opcodes (RFC 9669 §3.1).
const LD: u8 = 0x00;
const LDX: u8 = 0x01;
const STX: u8 = 0x03;
const ALU: u8 = 0x04;
const JMP: u8 = 0x05;
const ALU64: u8 = 0x07;
/// Bit of an opcode: the second operand is a register, not a constant.
const SOURCE_REG: u8 = 0x08;
/// Opcode bits of an 8-byte access (RFC 9669 §5).
const DW: u8 = 0x18;
const MODE_ABS: u8 = 0x20;
const MODE_IND: u8 = 0x40;
const MODE_MEM: u8 = 0x60;
/// Opcode of the conversion between host and network byte order (RFC 9669 §4.2).
const TO_BIG_ENDIAN: u8 = 0xd8;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
/// Source register field of a 64-bit load whose number is the descriptor of a map (RFC 9669 §5.4).
const MAP_BY_FD: u8 = 1;
const ALWAYS: u8 = 0x00;

/// A BPF program under construction.
#[derive(Debug, Default)]
pub struct BpfAssembler(Vec<BpfInstruction>);

impl BpfAssembler {
    /// Returns the instructions of the completed program.
    pub fn finish(self) -> Vec<BpfInstruction> {
        self.0
    }

    fn put(&mut self, code: u8, (dst, src): (Reg, Reg), offset: i16, immediate: i32) {
        let (dst, src) = (dst as u8, src as u8);
        let registers =
            if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
        self.0.push(BpfInstruction { code, registers, offset, immediate });
    }

    /// Emits `dst = dst op operand`.
    pub fn alu(&mut self, op: Op, dst: Reg, operand: impl Into<BpfOperand>) {
        match operand.into() {
            BpfOperand::Reg(src) => self.put(ALU64 | SOURCE_REG | op as u8, (dst, src), 0, 0),
            BpfOperand::Number(n) => self.put(ALU64 | op as u8, (dst, Reg::R0), 0, n),
        }
    }

    /// Emits `dst = number` for a 64-bit number, which takes two instruction slots.
    pub fn constant(&mut self, dst: Reg, number: u64) {
        self.put(LD | DW, (dst, Reg::R0), 0, number as u32 as i32);
        self.put(0, (Reg::R0, Reg::R0), 0, (number >> 32) as u32 as i32);
    }

    /// Emits `dst = map`, the address of the map with this descriptor. The descriptor must be open
    /// while the program is loaded.
    pub fn map(&mut self, dst: Reg, map: BorrowedFd<'_>) {
        let source = if cfg!(target_endian = "little") { MAP_BY_FD << 4 } else { MAP_BY_FD };
        self.put(LD | DW, (dst, Reg::R0), 0, map.as_raw_fd());
        let first = self.0.last_mut().expect("an instruction was put");
        first.registers |= source;
        self.put(0, (Reg::R0, Reg::R0), 0, 0);
    }

    /// Emits a load of `size` bytes from the memory at `base + offset` to `dst`, in host byte
    /// order.
    pub fn peek(&mut self, size: Size, dst: Reg, base: Reg, offset: i16) {
        self.put(LDX | MODE_MEM | size as u8, (dst, base), offset, 0);
    }

    /// Emits a conversion of the lower `size` bytes of `reg` between host and network byte order.
    pub fn swap(&mut self, size: Size, reg: Reg) {
        if size != Size::Byte {
            self.put(ALU | TO_BIG_ENDIAN, (reg, Reg::R0), 0, size.bits());
        }
    }

    /// Emits a call of the kernel's helper function with this number (bpf-helpers(7)). The
    /// arguments are in `R1` to `R5`.
    pub fn call(&mut self, function: i32) {
        self.put(JMP | CALL, (Reg::R0, Reg::R0), 0, function);
    }

    /// Emits a load of the packet's bytes at offset `at` to `R0`, in network byte order. If the
    /// packet is shorter, the program ends and returns 0.
    pub fn load(&mut self, size: Size, at: i32) {
        self.put(LD | MODE_ABS | size as u8, (Reg::R0, Reg::R0), 0, at);
    }

    /// Emits a load of the packet's bytes at offset `base + at` to `R0`, like [`Self::load`].
    pub fn load_from(&mut self, size: Size, base: Reg, at: i32) {
        self.put(LD | MODE_IND | size as u8, (Reg::R0, base), 0, at);
    }

    /// Emits a store of `src` to the program's stack, at `place`, one of 64 positions of 8 bytes.
    pub fn keep(&mut self, place: u8, src: Reg) {
        self.put(STX | MODE_MEM | DW, (Reg::Frame, src), offset(place), 0);
    }

    /// Emits a load of the value that [`Self::keep`] has stored in `place`; the value is loaded to
    /// `dst`.
    pub fn recall(&mut self, dst: Reg, place: u8) {
        self.put(LDX | MODE_MEM | DW, (dst, Reg::Frame), offset(place), 0);
    }

    /// Emits a forward jump that is taken if the comparison of `left` and `right` holds.
    pub fn jump_if(&mut self, left: Reg, when: If, right: impl Into<BpfOperand>) -> Jump {
        match right.into() {
            BpfOperand::Reg(src) => self.put(JMP | SOURCE_REG | when as u8, (left, src), 0, 0),
            BpfOperand::Number(n) => self.put(JMP | when as u8, (left, Reg::R0), 0, n),
        }
        Jump(self.0.len() - 1)
    }

    /// Emits an unconditional forward jump.
    pub fn jump(&mut self) -> Jump {
        self.put(JMP | ALWAYS, (Reg::R0, Reg::R0), 0, 0);
        Jump(self.0.len() - 1)
    }

    /// Makes the next instruction the target of these jumps.
    pub fn land(&mut self, jumps: impl IntoIterator<Item = Jump>) {
        let here = self.0.len();
        for Jump(from) in jumps {
            let offset = i16::try_from(here - from - 1);
            self.0[from].offset = offset.expect("programs have a few hundred instructions");
        }
    }

    /// Emits the end of the program, whose result is the value of `R0`.
    pub fn exit(&mut self) {
        self.put(JMP | EXIT, (Reg::R0, Reg::R0), 0, 0);
    }
}

fn offset(place: u8) -> i16 {
    -8 * (i16::from(place) + 1)
}
