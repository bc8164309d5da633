//! Instructions of BPF (RFC 9669), as many of them as [`super::Steering`] needs.
//!
//! Arithmetic is on 64 bits. Jumps go forward only: [`Assembler::jump_if`] leaves the place open, and
//! [`Assembler::land`] fills it in.

/// One instruction, as bpf(2) takes it (`struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    code: u8,
    /// The destination in the lower half, the source in the upper one (little-endian machines; the other way round on
    /// others, RFC 9669 §3.1).
    registers: u8,
    offset: i16,
    immediate: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

/// A register. Loads of the packet overwrite `R0` to `R5`, and take the packet from `R6`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reg {
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
    /// Points to the end of the stack, of 512 bytes.
    Frame,
}

/// What an arithmetic instruction does, with its code.
#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    Add = 0x00,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Xor = 0xa0,
    Move = 0xb0,
}

/// When a jump is taken, with its code. Comparisons are unsigned.
#[derive(Debug, Clone, Copy)]
pub(super) enum If {
    Equal = 0x10,
    Greater = 0x20,
    NotEqual = 0x50,
    Less = 0xa0,
}

/// How much of the packet is loaded, with its code.
#[derive(Debug, Clone, Copy)]
pub(super) enum Size {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
}

/// The other operand.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operand {
    Reg(Reg),
    Number(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

/// A jump whose target is not known yet.
#[derive(Debug)]
#[must_use]
pub(super) struct Jump(usize);

// Classes of instructions (RFC 9669 §3.1).
const LD: u8 = 0x00;
const LDX: u8 = 0x01;
const STX: u8 = 0x03;
const JMP: u8 = 0x05;
const ALU64: u8 = 0x07;
/// The operand is a register.
const SOURCE_REG: u8 = 0x08;
/// 8 bytes (RFC 9669 §5).
const DW: u8 = 0x18;
const MODE_ABS: u8 = 0x20;
const MODE_IND: u8 = 0x40;
const MODE_MEM: u8 = 0x60;
const EXIT: u8 = 0x90;
const ALWAYS: u8 = 0x00;

/// A program that is being written.
#[derive(Debug, Default)]
pub(super) struct Assembler(Vec<Instruction>);

impl Assembler {
    pub fn finish(self) -> Vec<Instruction> {
        self.0
    }

    fn put(&mut self, code: u8, (dst, src): (Reg, Reg), offset: i16, immediate: i32) {
        let (dst, src) = (dst as u8, src as u8);
        let registers =
            if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
        self.0.push(Instruction { code, registers, offset, immediate });
    }

    /// `dst = dst op operand`.
    pub fn alu(&mut self, op: Op, dst: Reg, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Reg(src) => self.put(ALU64 | SOURCE_REG | op as u8, (dst, src), 0, 0),
            Operand::Number(n) => self.put(ALU64 | op as u8, (dst, Reg::R0), 0, n),
        }
    }

    /// `dst = number`, which takes the place of two instructions.
    pub fn constant(&mut self, dst: Reg, number: u64) {
        self.put(LD | DW, (dst, Reg::R0), 0, number as u32 as i32);
        self.put(0, (Reg::R0, Reg::R0), 0, (number >> 32) as u32 as i32);
    }

    /// `R0 =` what the packet has at `at`, in network order. Where the packet is shorter, the program ends and returns 0.
    pub fn load(&mut self, size: Size, at: i32) {
        self.put(LD | MODE_ABS | size as u8, (Reg::R0, Reg::R0), 0, at);
    }

    /// The same at `base + at`.
    pub fn load_from(&mut self, size: Size, base: Reg, at: i32) {
        self.put(LD | MODE_IND | size as u8, (Reg::R0, base), 0, at);
    }

    /// Keeps `src` on the stack, in one of its 64 `places` of 8 bytes.
    pub fn keep(&mut self, place: u8, src: Reg) {
        self.put(STX | MODE_MEM | DW, (Reg::Frame, src), offset(place), 0);
    }

    /// Gets back what was kept.
    pub fn recall(&mut self, dst: Reg, place: u8) {
        self.put(LDX | MODE_MEM | DW, (dst, Reg::Frame), offset(place), 0);
    }

    pub fn jump_if(&mut self, left: Reg, when: If, right: impl Into<Operand>) -> Jump {
        match right.into() {
            Operand::Reg(src) => self.put(JMP | SOURCE_REG | when as u8, (left, src), 0, 0),
            Operand::Number(n) => self.put(JMP | when as u8, (left, Reg::R0), 0, n),
        }
        Jump(self.0.len() - 1)
    }

    pub fn jump(&mut self) -> Jump {
        self.put(JMP | ALWAYS, (Reg::R0, Reg::R0), 0, 0);
        Jump(self.0.len() - 1)
    }

    /// The jumps lead to the next instruction.
    pub fn land(&mut self, jumps: impl IntoIterator<Item = Jump>) {
        let here = self.0.len();
        for Jump(from) in jumps {
            // The kernel refuses a program that is too long for its jumps, which none of ours is.
            self.0[from].offset = (here - from - 1) as i16;
        }
    }

    /// Ends the program, which returns `R0`.
    pub fn exit(&mut self) {
        self.put(JMP | EXIT, (Reg::R0, Reg::R0), 0, 0);
    }
}

fn offset(place: u8) -> i16 {
    -8 * (i16::from(place) + 1)
}
