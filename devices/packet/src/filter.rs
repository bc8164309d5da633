//! Classic BPF program with which the kernel selects frames for the socket (SO_ATTACH_FILTER,
//! socket(7)).

/// An instruction in the format of the kernel's `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct SockFilter {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    value: u32,
}

const _: () = assert!(size_of::<SockFilter>() == 8);

/// Opcodes that load a word, a half-word or a byte from the frame: BPF_LD | BPF_ABS with BPF_W,
/// BPF_H or BPF_B.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
/// Opcodes of conditional jumps: BPF_JMP | BPF_JEQ and BPF_JMP | BPF_JSET, with BPF_K.
const JUMP_EQUAL: u16 = 0x15;
const JUMP_ANY_BIT: u16 = 0x45;
/// Opcode that ends the program with a constant result: BPF_RET | BPF_K.
const RETURN: u16 = 0x06;
/// Result of a filter program that accepts the whole frame.
const WHOLE: u32 = u32::MAX;
/// Bit of an Ethernet address that marks multicast and broadcast addresses (IEEE 802.3 §3.2.3).
const GROUP_BIT: u32 = 1;

/// Returns a program that selects frames to `mac`, multicast frames and broadcast frames.
pub(crate) fn frames_to(mac: [u8; 6]) -> [SockFilter; 8] {
    let [a, b, c, d, e, f] = mac;
    let instruction = |code, value| SockFilter { code, jump_true: 0, jump_false: 0, value };
    let jump =
        |code, value, jump_true, jump_false| SockFilter { code, jump_true, jump_false, value };
    [
        instruction(LOAD_HALF, 0),
        jump(JUMP_EQUAL, u16::from_be_bytes([a, b]).into(), 0, 2),
        instruction(LOAD_WORD, 2),
        jump(JUMP_EQUAL, u32::from_be_bytes([c, d, e, f]), 2, 0),
        instruction(LOAD_BYTE, 0),
        jump(JUMP_ANY_BIT, GROUP_BIT, 0, 1),
        instruction(RETURN, WHOLE),
        instruction(RETURN, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets a BPF program like the kernel: a load beyond the end of the frame ends it with
    /// result 0.
    fn run(program: &[SockFilter], frame: &[u8]) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let SockFilter { code, jump_true, jump_false, value } = program[at];
            at += 1;
            let mut load = |len: usize| {
                let start = value as usize;
                let bytes = frame.get(start..start + len)?;
                accumulator = bytes.iter().fold(0, |all, byte| all << 8 | u32::from(*byte));
                Some(())
            };
            let loaded = match code {
                LOAD_WORD => load(4),
                LOAD_HALF => load(2),
                LOAD_BYTE => load(1),
                JUMP_EQUAL | JUMP_ANY_BIT => {
                    let holds = match code {
                        JUMP_EQUAL => accumulator == value,
                        _ => accumulator & value != 0,
                    };
                    at += usize::from(if holds { jump_true } else { jump_false });
                    Some(())
                }
                RETURN => return value,
                other => panic!("code {other:#x}"),
            };
            if loaded.is_none() {
                return 0;
            }
        }
    }

    #[test]
    fn frames_to_us_and_to_groups_pass_and_no_others() {
        let program = frames_to([2, 0x11, 0x22, 0x33, 0x44, 0x55]);
        let passes = |frame: &[u8]| run(&program, frame) != 0;
        assert!(passes(&[2, 0x11, 0x22, 0x33, 0x44, 0x55, 0, 0]));
        assert!(passes(&[0xff; 60]));
        assert!(passes(&[0x33, 0x33, 0, 0, 0, 1, 0]));
        // A destination address that differs in one bit is rejected.
        for at in 0..6 {
            let mut frame = [2, 0x11, 0x22, 0x33, 0x44, 0x55, 0, 0];
            frame[at] ^= 4;
            assert!(!passes(&frame), "byte {at}");
        }
        for len in 0..6 {
            assert!(!passes(&[2, 0x11, 0x22, 0x33, 0x44, 0x55][..len]), "{len} bytes");
        }
    }
}
