//! Compares programs with the kernel: AF_UNIX sockets run a filter on exactly the bytes of a
//! message, so no network is required.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;

use proptest::prelude::*;
use socket2::{SockFilter, SockRef};
use towpath_cbpf::{Instruction, Program};

/// Result of a program for a message: `None` if the program is rejected, `Some(None)` if the
/// message is dropped.
type Outcome = Option<Option<Vec<u8>>>;

fn ours(code: &[Instruction], message: &[u8]) -> Outcome {
    let program = Program::check(code).ok()?;
    assert_eq!(program.instructions(), code);
    let kept = program.run(message) as usize;
    // Like `sk_filter`, keep at least one byte of a message that is not dropped.
    Some((kept > 0).then(|| message[..kept.min(message.len())].to_vec()))
}

fn the_kernels(code: &[Instruction], message: &[u8]) -> Outcome {
    let (from, to) = UnixDatagram::pair().expect("a pair of sockets");
    let filter = code.iter().map(|i| SockFilter::new(i.code, i.jt, i.jf, i.k)).collect::<Vec<_>>();
    if let Err(error) = SockRef::from(&to).attach_filter(&filter) {
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        return None;
    }
    let sent = from.send(message);
    to.set_nonblocking(true).expect("a socket");
    let mut room = [0; 2048];
    match to.recv(&mut room) {
        Ok(len) => Some(Some(room[..len].to_vec())),
        Err(_) => {
            // AF_UNIX sends of a dropped message fail with EPERM, or succeed silently.
            assert!(sent.is_ok() || sent.is_err_and(|error| error.raw_os_error() == Some(1)));
            Some(None)
        }
    }
}

fn compare(code: &[Instruction], message: &[u8]) {
    assert_eq!(ours(code, message), the_kernels(code, message), "{code:?}\n{message:?}");
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code, jt, jf, k }
}

/// Valid codes, in proportions that produce programs with loads and branches.
const CODES: &[u16] = &[
    0x00, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x60, 0x80, 0x01, 0x61, 0x81, 0xb1, 0x02, 0x03, 0x04,
    0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x84,
    0x94, 0x9c, 0xa4, 0xac, 0x05, 0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d, 0x06, 0x16, 0x07,
    0x87,
];

/// SKF_AD_OFF and SKF_AD_ALU_XOR_X.
const XOR_X: u32 = 0xffff_f000 + 40;

fn any_k() -> impl Strategy<Value = u32> {
    prop_oneof![
        6 => 0..20u32,
        2 => 0..70u32,
        1 => any::<u32>(),
        1 => Just(XOR_X),
        1 => Just(u32::MAX),
        1 => 0xffe0_0000..0xffe0_0004u32,
    ]
}

fn any_code() -> impl Strategy<Value = u16> {
    prop_oneof![40 => prop::sample::select(CODES), 1 => any::<u8>().prop_map(u16::from)]
}

fn any_program() -> impl Strategy<Value = Vec<Instruction>> {
    let any = (any_code(), 0..4u8, 0..4u8, any_k());
    let any = any.prop_map(|(code, jt, jf, k)| instruction(code, jt, jf, k));
    // Written cells and a final return make more programs valid.
    let end = prop::sample::select(&[0x06u16, 0x16][..]);
    (0..17u32, prop::collection::vec(any, 0..24), end, 0..80u32).prop_map(
        |(cells, body, end, k)| {
            let stores = (0..cells).map(|cell| instruction(0x02, 0, 0, cell));
            stores.chain(body).chain([instruction(end, 0, 0, k)]).collect()
        },
    )
}

fn many() -> ProptestConfig {
    ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(many())]

    #[test]
    fn programs_are_refused_and_judge_as_the_kernels_do(
        code in any_program(),
        message in prop::collection::vec(any::<u8>(), 1..80),
    ) {
        compare(&code, &message);
    }
}

/// Tests each code systematically, independent of random generation.
#[test]
fn each_instruction_does_what_the_kernels_does() {
    let message: Vec<u8> = (0..40u8).map(|n| n.wrapping_mul(7) + 3).collect();
    let values = [0, 1, 3, 4, 15, 16, 31, 32, 33, 36, 37, 40, 41, 0x7fff_ffff, 0x8000_0000, XOR_X];
    for code in 0..=0x1ff {
        for k in values {
            // Set A = 0x0d and X = 9, run the instruction, then return A, X or a bit of A.
            let begin = [(0x00, 13), (0x07, 0), (0x00, 9), (0x02, 1), (0x02, 4), (0x03, 3)];
            let begin = begin.map(|(code, k)| instruction(code, 0, 0, k));
            let its = instruction(code, 1, 0, k);
            let end = [(0x02, 15), (0x87, 0), (0x0c, 0), (0x07, 0), (0x60, 15), (0x0c, 0)];
            let end = end.map(|(code, k)| instruction(code, 0, 0, k));
            let last = [instruction(0x54, 0, 0, 31), instruction(0x16, 0, 0, 0)];
            let program: Vec<_> = begin.into_iter().chain([its]).chain(end).chain(last).collect();
            compare(&program, &message);
        }
    }
}

#[test]
fn lengths_and_ends_are_refused_as_by_the_kernel() {
    let step = instruction(0x00, 0, 0, 1);
    for len in [0, 1, 2, 4095, 4096] {
        let mut program = vec![step; len];
        compare(&program, b"x");
        if let Some(last) = program.last_mut() {
            *last = instruction(0x06, 0, 0, 1);
        }
        compare(&program, b"x");
    }
    assert!(Program::check(&[instruction(0x06, 0, 0, 1); 4097]).is_err());
    // Jumps to the last instruction and beyond.
    for k in [0, 1, 2, 3, u32::MAX] {
        let program = [instruction(0x05, 0, 0, k), step, instruction(0x06, 0, 0, 1)];
        compare(&program, b"x");
    }
}

/// Output of `tcpdump -ddd 'udp port 53'` for Ethernet.
const UDP_PORT_53: &[(u16, u8, u8, u32)] = &[
    (40, 0, 0, 12),
    (21, 0, 6, 34525),
    (48, 0, 0, 20),
    (21, 0, 15, 17),
    (40, 0, 0, 54),
    (21, 12, 0, 53),
    (40, 0, 0, 56),
    (21, 10, 11, 53),
    (21, 0, 10, 2048),
    (48, 0, 0, 23),
    (21, 0, 8, 17),
    (40, 0, 0, 20),
    (69, 6, 0, 8191),
    (177, 0, 0, 14),
    (72, 0, 0, 14),
    (21, 2, 0, 53),
    (72, 0, 0, 16),
    (21, 0, 1, 53),
    (6, 0, 0, 262144),
    (6, 0, 0, 0),
];

#[test]
fn a_program_of_tcpdump_chooses_the_frames_that_it_names() {
    let program: Vec<_> =
        UDP_PORT_53.iter().map(|&(code, jt, jf, k)| instruction(code, jt, jf, k)).collect();
    let frame = |protocol: u8, ports: [u8; 4]| {
        let mut frame = vec![0; 14 + 20 + 8];
        (frame[12], frame[14], frame[23]) = (8, 0x45, protocol);
        frame[34..38].copy_from_slice(&ports);
        frame
    };
    let mut fragment = frame(17, [0, 53, 1, 1]);
    fragment[21] = 7;
    let frames = [
        (frame(17, [1, 2, 0, 53]), true),
        (frame(17, [0, 53, 1, 2]), true),
        (frame(17, [1, 2, 3, 4]), false),
        (frame(6, [0, 53, 0, 53]), false),
        (fragment, false),
    ];
    for (frame, is_chosen) in frames {
        compare(&program, &frame);
        assert_eq!(ours(&program, &frame), Some(is_chosen.then_some(frame)));
    }
}
