//! Programs that may be run: `bpf_check_classic`, step by step.

use core::fmt;

use crate::instruction::{INSTRUCTIONS_MAX, Instruction, Load, Step};

/// Linux refuses the program: EINVAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// No instruction, or more than [`INSTRUCTIONS_MAX`].
    Length,
    /// An instruction that does not exist, or with an operand out of range.
    Instruction(usize),
    /// A jump beyond the end.
    Jump(usize),
    /// The last instruction does not return.
    NoReturn,
    /// A cell of the scratch memory may be read before it is written.
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

/// The steps of a program that may be run.
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

/// Instructions that a jump may skip; `None`: the next one follows.
fn targets(step: &Step) -> Option<[usize; 2]> {
    match *step {
        Step::Jump(skip) => Some([skip as usize; 2]),
        Step::Branch { jt, jf, .. } => Some([jt.into(), jf.into()]),
        _ => None,
    }
}

/// As `check_load_and_stores`: a bit for each cell that is written on every way to an instruction.
/// The instruction behind a jump is reached by other jumps alone, which have left their bits.
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
