//! Validation of programs, following Linux's `bpf_check_classic`.

use core::fmt;

use crate::instruction::{INSTRUCTIONS_MAX, Instruction, Load, Step};

/// Reason why a program was rejected; Linux returns EINVAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The program is empty, or has more than [`INSTRUCTIONS_MAX`] instructions.
    Length,
    /// The instruction at this index is unknown, or has an operand out of range.
    Instruction(usize),
    /// The instruction at this index jumps beyond the end of the program.
    Jump(usize),
    /// The last instruction of the program is not a return instruction, so execution could continue
    /// after the end of the program.
    NoReturn,
    /// The instruction at this index may read a cell of the scratch memory before it is written.
    Unwritten(usize),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => write!(f, "a program has 1 to {INSTRUCTIONS_MAX} instructions"),
            Self::Instruction(at) => write!(f, "instruction {at} does not exist"),
            Self::Jump(at) => write!(f, "instruction {at} jumps beyond the end"),
            Self::NoReturn => write!(f, "the last instruction does not return"),
            Self::Unwritten(at) => write!(f, "instruction {at} reads a cell before it is written"),
        }
    }
}

impl std::error::Error for Refused {}

/// Validates a BPF program like Linux, and returns its decoded instructions.
pub(crate) fn check(program: &[Instruction]) -> Result<Box<[Step]>, Refused> {
    if program.is_empty() || program.len() > INSTRUCTIONS_MAX {
        return Err(Refused::Length);
    }
    let decode = |(at, instruction): (usize, &Instruction)| {
        instruction.decode().ok_or(Refused::Instruction(at))
    };
    let steps: Box<[Step]> = program.iter().enumerate().map(decode).collect::<Result<_, _>>()?;
    for (at, step) in steps.iter().enumerate() {
        let after = steps.len() - at - 1;
        if targets(step).is_some_and(|targets| targets.iter().any(|skip| *skip >= after)) {
            return Err(Refused::Jump(at));
        }
    }
    match steps.last() {
        Some(Step::Return(_) | Step::ReturnA) => check_cells(&steps).map(|()| steps),
        _ => Err(Refused::NoReturn),
    }
}

/// Returns the two distances, in instructions, by which an instruction may jump: if its comparison
/// holds, and if not. Returns `None` if the instruction does not jump.
fn targets(step: &Step) -> Option<[usize; 2]> {
    match *step {
        Step::Jump(skip) => Some([skip as usize; 2]),
        Step::Branch { jt, jf, .. } => Some([jt.into(), jf.into()]),
        _ => None,
    }
}

/// Checks that the program writes every cell of the scratch memory before it reads the cell, like
/// Linux's `check_load_and_stores`.
///
/// For each instruction, `on_arrival` has one bit per cell. The bit is set if the cell was written
/// on every path by which a jump reaches the instruction.
fn check_cells(steps: &[Step]) -> Result<(), Refused> {
    let mut on_arrival = vec![u16::MAX; steps.len()];
    let mut written = 0;
    for (at, step) in steps.iter().enumerate() {
        written &= on_arrival[at];
        match step {
            Step::Store(cell) | Step::StoreX(cell) => written |= 1 << cell,
            Step::LoadA(Load::Cell(cell)) | Step::LoadX(Load::Cell(cell))
                if written & 1 << cell == 0 =>
            {
                return Err(Refused::Unwritten(at));
            }
            _ => {}
        }
        if let Some(targets) = targets(step) {
            targets.iter().for_each(|skip| on_arrival[at + 1 + skip] &= written);
            written = u16::MAX;
        }
    }
    Ok(())
}
