//! Encoded and decoded forms of BPF instructions.

use crate::packet::Ancillary;

/// Maximum number of instructions of a BPF program; Linux's BPF_MAXINSNS.
pub const INSTRUCTIONS_MAX: usize = 4096;
/// Number of 32-bit cells in the scratch memory of a BPF program; Linux's BPF_MEMWORDS.
pub(crate) const CELLS: usize = 16;

/// A BPF instruction in encoded form, with the fields of Linux's `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Opcode: instruction class, operand size, addressing mode and operation.
    pub code: u16,
    /// Number of instructions to skip if the comparison holds.
    pub jt: u8,
    /// Number of instructions to skip if the comparison does not hold.
    pub jf: u8,
    /// Constant operand of the instruction.
    pub k: u32,
}

impl Instruction {
    /// Size of a `struct sock_filter` in bytes.
    pub const LEN: usize = 8;

    /// Decodes a `struct sock_filter` in native byte order.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let [a, b, jt, jf, k @ ..] = bytes;
        Self { code: u16::from_ne_bytes([a, b]), jt, jf, k: u32::from_ne_bytes(k) }
    }

    /// Encodes the instruction as a `struct sock_filter`.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let ([a, b], [c, d, e, f]) = (self.code.to_ne_bytes(), self.k.to_ne_bytes());
        [a, b, self.jt, self.jf, c, d, e, f]
    }

    /// Decodes the instruction. Returns `None` if `chk_code_allowed` rejects the code, or an
    /// operand is out of range.
    pub(crate) fn decode(self) -> Option<Step> {
        let Self { code, jt, jf, k } = self;
        Some(match code & CLASS {
            LD => Step::LoadA(load(code, k)?),
            LDX => Step::LoadX(load_x(code, k)?),
            ST if code == ST => Step::Store(cell(k)?),
            STX if code == STX => Step::StoreX(cell(k)?),
            ALU if code == ALU | NEG => Step::Negate,
            ALU => {
                let by = operand(code, k);
                Step::Compute(operation(code, by)?, by)
            }
            JMP if code == JMP => Step::Jump(k),
            JMP => Step::Branch { test: test(code)?, with: operand(code, k), jt, jf },
            RET if code == RET => Step::Return(k),
            RET if code == RET | FROM_A => Step::ReturnA,
            MISC if code == MISC => Step::AToX,
            MISC if code == MISC | XA => Step::XToA,
            _ => return None,
        })
    }
}

/// A BPF instruction after decoding and validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    LoadA(Load),
    LoadX(Load),
    Store(u8),
    StoreX(u8),
    Compute(Operation, Operand),
    Negate,
    Jump(u32),
    Branch { test: Test, with: Operand, jt: u8, jf: u8 },
    Return(u32),
    ReturnA,
    AToX,
    XToA,
}

/// Source of the value that a load instruction writes to register A or X.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    Constant(u32),
    Cell(u8),
    PacketLen,
    /// Bytes of the packet at a constant offset.
    At(Width, u32),
    /// Bytes of the packet at the offset in register X plus a constant.
    AtX(Width, u32),
    /// Length in bytes of the IPv4 header whose first byte is at this offset. The length is four
    /// times the lower four bits of that byte.
    HeaderLen(u32),
    About(Ancillary),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    Word,
    Half,
    Byte,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Or,
    And,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    Equal,
    Greater,
    GreaterOrEqual,
    AnyBit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operand {
    Constant(u32),
    X,
}

// Opcode constants of linux/bpf_common.h and linux/filter.h.
const CLASS: u16 = 0x07;
const LD: u16 = 0x00;
const LDX: u16 = 0x01;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const ALU: u16 = 0x04;
const JMP: u16 = 0x05;
const RET: u16 = 0x06;
const MISC: u16 = 0x07;
/// BPF_X: the operand is register X, not a constant.
const X: u16 = 0x08;
/// BPF_A: a return instruction returns the accumulator A, not a constant.
const FROM_A: u16 = 0x10;
/// BPF_TXA: copies register X to A. Without this bit the instruction copies A to X (BPF_TAX).
const XA: u16 = 0x80;
const NEG: u16 = 0x80;
const HALF: u16 = 0x08;
const BYTE: u16 = 0x10;
const ABS: u16 = 0x20;
const IND: u16 = 0x40;
const MEM: u16 = 0x60;
const LEN: u16 = 0x80;
const MSH: u16 = 0xa0;

fn load(code: u16, k: u32) -> Option<Load> {
    const SIZE: u16 = 0x18;
    let width = match code & SIZE {
        0 => Width::Word,
        HALF => Width::Half,
        BYTE => Width::Byte,
        _ => return None,
    };
    match (code & !(CLASS | SIZE), width) {
        (0, Width::Word) => Some(Load::Constant(k)),
        (MEM, Width::Word) => Some(Load::Cell(cell(k)?)),
        (LEN, Width::Word) => Some(Load::PacketLen),
        (ABS, _) => match k.checked_sub(Ancillary::OFFSET) {
            Some(what) => Some(Load::About(Ancillary::numbered(what)?)),
            None => Some(Load::At(width, k)),
        },
        (IND, _) => Some(Load::AtX(width, k)),
        _ => None,
    }
}

fn load_x(code: u16, k: u32) -> Option<Load> {
    match code & !CLASS {
        0 => Some(Load::Constant(k)),
        MEM => Some(Load::Cell(cell(k)?)),
        LEN => Some(Load::PacketLen),
        other if other == MSH | BYTE => Some(Load::HeaderLen(k)),
        _ => None,
    }
}

fn cell(k: u32) -> Option<u8> {
    u8::try_from(k).ok().filter(|cell| usize::from(*cell) < CELLS)
}

fn operand(code: u16, k: u32) -> Operand {
    if code & X == 0 { Operand::Constant(k) } else { Operand::X }
}

/// Decodes an arithmetic operation. Returns `None` for a division by the constant 0, and for a
/// shift by a constant of 32 or more.
fn operation(code: u16, by: Operand) -> Option<Operation> {
    let operation = match code & !(CLASS | X) {
        0x00 => Operation::Add,
        0x10 => Operation::Sub,
        0x20 => Operation::Mul,
        0x30 => Operation::Div,
        0x40 => Operation::Or,
        0x50 => Operation::And,
        0x60 => Operation::ShiftLeft,
        0x70 => Operation::ShiftRight,
        0x90 => Operation::Mod,
        0xa0 => Operation::Xor,
        _ => return None,
    };
    match (operation, by) {
        (Operation::Div | Operation::Mod, Operand::Constant(0)) => None,
        (Operation::ShiftLeft | Operation::ShiftRight, Operand::Constant(u32::BITS..)) => None,
        _ => Some(operation),
    }
}

fn test(code: u16) -> Option<Test> {
    match code & !(CLASS | X) {
        0x10 => Some(Test::Equal),
        0x20 => Some(Test::Greater),
        0x30 => Some(Test::GreaterOrEqual),
        0x40 => Some(Test::AnyBit),
        _ => None,
    }
}
