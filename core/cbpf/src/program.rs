//! The virtual machine of BPF: two registers, sixteen cells of scratch memory, and a packet.

use crate::check::{Refused, check};
use crate::instruction::{CELLS, Instruction, Load, Operand, Operation, Step, Test, Width};
use crate::packet::{Ancillary, FilterPacket, Origin};

/// A classic BPF program that was validated, so that running it is safe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    steps: Box<[Step]>,
    instructions: Box<[Instruction]>,
}

impl Program {
    /// Validates a BPF program like Linux.
    ///
    /// # Errors
    /// Returns the reason as [`Refused`] if Linux would reject the program.
    pub fn check(instructions: &[Instruction]) -> Result<Self, Refused> {
        Ok(Self { steps: check(instructions)?, instructions: instructions.into() })
    }

    /// Returns the encoded instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Runs the program on a packet, and returns its result: for a filter the number of bytes to
    /// keep, or 0 to drop the packet. The result is also 0 after a load beyond the packet, or a
    /// division by 0.
    pub fn run<P: FilterPacket + ?Sized>(&self, packet: &P) -> u32 {
        FilterMachine::default().run(&self.steps, packet).unwrap_or(0)
    }
}

#[derive(Debug, Default)]
struct FilterMachine {
    a: u32,
    x: u32,
    cells: [u32; CELLS],
}

impl FilterMachine {
    /// Runs the decoded instructions. Returns `None` if a load reads beyond the packet, or a
    /// divisor is 0.
    fn run<P: FilterPacket + ?Sized>(&mut self, steps: &[Step], packet: &P) -> Option<u32> {
        let mut at = 0;
        // `check` guarantees that jumps lead forward, and that the last step returns.
        while let Some(step) = steps.get(at) {
            at += 1;
            match *step {
                Step::LoadA(load) => self.a = self.load(load, packet)?,
                Step::LoadX(load) => self.x = self.load(load, packet)?,
                Step::Store(cell) => self.cells[usize::from(cell)] = self.a,
                Step::StoreX(cell) => self.cells[usize::from(cell)] = self.x,
                Step::Compute(operation, by) => self.a = self.compute(operation, by)?,
                Step::Negate => self.a = self.a.wrapping_neg(),
                Step::Jump(skip) => at += skip as usize,
                Step::Branch { test, with, jt, jf } => {
                    at += usize::from(if self.holds(test, with) { jt } else { jf });
                }
                Step::Return(value) => return Some(value),
                Step::ReturnA => return Some(self.a),
                Step::AToX => self.x = self.a,
                Step::XToA => self.a = self.x,
            }
        }
        None
    }

    fn load<P: FilterPacket + ?Sized>(&self, load: Load, packet: &P) -> Option<u32> {
        match load {
            Load::Constant(value) => Some(value),
            Load::Cell(cell) => Some(self.cells[usize::from(cell)]),
            Load::PacketLen => Some(packet.len()),
            Load::At(width, at) => bytes_at(packet, width, at),
            Load::AtX(width, at) => bytes_at(packet, width, self.x.wrapping_add(at)),
            Load::HeaderLen(at) => Some((bytes_at(packet, Width::Byte, at)? & 0xf) * 4),
            Load::About(Ancillary::XorX) => Some(self.a ^ self.x),
            Load::About(what) => Some(packet.about(what)),
        }
    }

    fn compute(&self, operation: Operation, by: Operand) -> Option<u32> {
        let (a, by) = (self.a, self.value(by));
        Some(match operation {
            Operation::Add => a.wrapping_add(by),
            Operation::Sub => a.wrapping_sub(by),
            Operation::Mul => a.wrapping_mul(by),
            Operation::Div => a.checked_div(by)?,
            Operation::Mod => a.checked_rem(by)?,
            Operation::Or => a | by,
            Operation::And => a & by,
            Operation::Xor => a ^ by,
            // Like Linux, use only the lowest five bits of the shift distance.
            Operation::ShiftLeft => a.wrapping_shl(by),
            Operation::ShiftRight => a.wrapping_shr(by),
        })
    }

    fn holds(&self, test: Test, with: Operand) -> bool {
        let (a, with) = (self.a, self.value(with));
        match test {
            Test::Equal => a == with,
            Test::Greater => a > with,
            Test::GreaterOrEqual => a >= with,
            Test::AnyBit => a & with != 0,
        }
    }

    fn value(&self, operand: Operand) -> u32 {
        match operand {
            Operand::Constant(value) => value,
            Operand::X => self.x,
        }
    }
}

/// Loads a number in network byte order from the packet.
fn bytes_at<P: FilterPacket + ?Sized>(packet: &P, width: Width, at: u32) -> Option<u32> {
    let (origin, at) = Origin::of(at)?;
    let mut bytes = [0; 4];
    let len = match width {
        Width::Word => 4,
        Width::Half => 2,
        Width::Byte => 1,
    };
    packet.read(origin, at, &mut bytes[4 - len..]).then_some(u32::from_be_bytes(bytes))
}
