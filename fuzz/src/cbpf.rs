//! Fuzzes socket filters: arbitrary instructions, and arbitrary packets for accepted programs.

use towpath_cbpf::{Ancillary, FilterPacket, Instruction, Origin, Program};

use crate::input::Input;

/// Maximum instructions of a case. More would need longer inputs without reaching new behaviour.
const INSTRUCTIONS_MAX: u8 = 64;
/// Valid codes, because few programs of random codes would be accepted.
const CODES: &[u16] = &[
    0x00, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x60, 0x80, 0x01, 0x61, 0x81, 0xb1, 0x02, 0x03, 0x04,
    0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x84,
    0x94, 0x9c, 0xa4, 0xac, 0x05, 0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d, 0x06, 0x16, 0x07,
    0x87,
];
/// SKF_LL_OFF and SKF_AD_OFF.
const LINK: u32 = -0x20_0000_i32 as u32;
const ABOUT: u32 = -0x1000_i32 as u32;

/// A packet whose data starts at an offset of the bytes, with its metadata.
struct Frame<'a> {
    bytes: &'a [u8],
    network: usize,
    data: usize,
}

impl FilterPacket for Frame<'_> {
    fn len(&self) -> u32 {
        (self.bytes.len() - self.data) as u32
    }

    fn read(&self, origin: Origin, at: u32, bytes: &mut [u8]) -> bool {
        let from = match origin {
            Origin::Data => self.data,
            Origin::Network => self.network,
            Origin::Link => 0,
        };
        self.bytes[from..].read(Origin::Data, at, bytes)
    }

    fn about(&self, what: Ancillary) -> u32 {
        what as u32
    }
}

/// Runs one case. Panics if a program changes when it is encoded, or gives two results for a
/// packet.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let count = input.u8() % INSTRUCTIONS_MAX;
    let mut code: Vec<Instruction> = (0..count).map(|_| instruction(&mut input)).collect();
    if !input.one_in(16) {
        code.push(Instruction { code: 0x16, jt: 0, jf: 0, k: 0 });
    }
    for written in &code {
        assert_eq!(Instruction::from_bytes(written.to_bytes()), *written);
    }
    let Ok(program) = Program::check(&code) else { return };
    assert_eq!(program.instructions(), code);
    let (network, transport) = (usize::from(input.u8() % 20), usize::from(input.u8() % 60));
    let bytes = input.rest();
    let network = network.min(bytes.len());
    let frame = Frame { bytes, network, data: (network + transport).min(bytes.len()) };
    assert_eq!(program.run(&frame), program.run(&frame), "{code:?}");
    program.run(bytes);
}

fn instruction(input: &mut Input<'_>) -> Instruction {
    let code = if input.one_in(32) { input.u16() } else { input.pick(CODES) };
    let k = match input.u8() % 8 {
        0 => input.u32(),
        1 => LINK.wrapping_add(input.u32() % 0x20_0040),
        2 => ABOUT.wrapping_add(u32::from(input.u8() % 70)),
        _ => u32::from(input.u8() % 32),
    };
    Instruction { code, jt: input.u8() % 8, jf: input.u8() % 8, k }
}
