//! Tests every word, request and command in turn, from a program that attached correctly. The lists
//! are generated from the definitions in `towpath_shm`, so that they include every new item.

use std::time::Duration;

use towpath_fuzz::engine::{CHANNEL_WORDS, Case, Reach, SLOT_WORDS, VALUES};
use towpath_shm::control::{Request, call, goes_by_socket, purpose};
use towpath_shm::layout::{Command, RawAddr, op, setting};

const EBADF: i32 = 9;
const EPROTO: i32 = 71;
const EOPNOTSUPP: i32 = 95;
/// Arguments of a request or command.
const ARGUMENTS: &[u32] = &[0, 1, 2, 6, 10, 17, 41, 58, 1 << 16, u32::MAX];

/// Number of overwritten words after which a new engine is created, because reset sockets stay with
/// the program until its end.
const SPOILT_MAX: usize = 64;

#[test]
fn every_word_of_a_slot() {
    let places = (0..SLOT_WORDS).flat_map(|word| VALUES.iter().map(move |value| (word, *value)));
    let all: Vec<_> = places.collect();
    for some in all.chunks(SPOILT_MAX) {
        let mut case = Case::new(Reach::Own);
        for &(word, value) in some {
            case.open_all();
            for (slot, generation) in case.last_sockets() {
                case.spoil_slot(slot, generation, word, value);
            }
            case.honest_works();
        }
        case.end();
    }
}

#[test]
fn every_word_of_the_header_of_a_channel() {
    for word in 0..CHANNEL_WORDS {
        let mut case = Case::new(Reach::Own);
        for value in VALUES {
            case.attach();
            case.open_all();
            case.spoil_channel(word, *value);
            case.turn(Duration::ZERO);
            case.honest_works();
        }
        case.end();
    }
}

/// Overwrites commands, events that the program has not taken, and free entries.
#[test]
fn every_word_of_the_rings() {
    for value in VALUES {
        let mut case = Case::new(Reach::Own);
        for _ in 0..3 {
            case.open_all();
            case.spoil_rings(*value);
            case.honest_works();
        }
        case.end();
    }
}

/// No part of the engine relies on this page, and neither do programs that start later.
#[test]
fn every_word_of_the_region_that_is_no_sockets() {
    let mut case = Case::new(Reach::Own);
    for value in VALUES {
        case.spoil_first_page(*value);
        case.honest_works();
        case.attach();
        case.open_all();
        case.kill();
    }
    case.end();
}

/// A program's first call is not HELLO.
#[test]
fn every_call_before_hello() {
    for &(name, number) in call::ALL {
        let mut case = Case::new(Reach::Own);
        case.attach_in_silence();
        let errno = case.request(&Request { call: number, ..Request::default() });
        let may_begin = [call::HELLO, call::REGION].contains(&number);
        assert_eq!(errno, Some(if may_begin { 0 } else { EPROTO }), "{name}");
        case.honest_works();
        case.end();
    }
}

/// Calls with descriptors are refused in the request slot. Bytes of an earlier request never become
/// part of another one.
#[test]
fn every_call_in_the_cell() {
    for &(name, number) in call::ALL {
        let mut case = Case::new(Reach::Own);
        case.open_all();
        let &(slot, generation) = case.handles().first().expect("it was opened");
        let mut request = Request { call: number, slot, generation, ..Request::default() };
        for len in [0, 4, 1024, 1025, u32::MAX] {
            request.len = len;
            let errno = case.request_in_cell(&request).expect(name);
            assert_eq!(errno == EPROTO, goes_by_socket(number), "{name}");
        }
        case.honest_works();
        case.end();
    }
}

/// The engine supports exactly the listed calls.
#[test]
fn every_call_with_every_kind_of_socket() {
    let mut case = Case::new(Reach::Own);
    case.open_all();
    let handles = case.handles();
    for number in 0..2 * call::LAST {
        let is_listed = call::ALL.iter().any(|(_, listed)| *listed == number);
        let mut is_known = false;
        for &(slot, generation) in handles.iter().chain(&[(u32::MAX, 0), (4000, 1)]) {
            let request = Request { call: number, slot, generation, ..Request::default() };
            let errno = case.request(&request).expect("an answer");
            is_known |= ![EOPNOTSUPP, EBADF].contains(&errno);
            case.honest_works();
        }
        assert_eq!(is_known, is_listed, "call {number}");
        // CLONE has created processes that hold the sockets, and HELLO has removed the program's
        // sockets.
        case.end();
        case = Case::new(Reach::Own);
        case.open_all();
    }
    case.end();
}

#[test]
fn every_call_with_every_argument() {
    for &(_, number) in call::ALL {
        let mut case = Case::new(Reach::Own);
        case.open_all();
        let handles = case.handles();
        for a in ARGUMENTS {
            for b in ARGUMENTS {
                for &(slot, generation) in &handles {
                    let (a, b) = (*a, *b);
                    let request = Request {
                        call: number,
                        slot,
                        generation,
                        a,
                        b,
                        len: b,
                        ..Request::default()
                    };
                    if [call::CLONE, call::HELLO, call::SOCKET].contains(&number) {
                        let _ = case.request(&request);
                    } else {
                        assert!(case.request(&request).is_some(), "call {number}, {a}, {b}");
                    }
                }
            }
        }
        case.honest_works();
        case.end();
    }
    assert_eq!(purpose::ALL.len(), 3, "CLONE was asked for each of them");
}

/// Calls with an address are answered, whatever the address is.
#[test]
fn every_call_with_every_kind_of_address() {
    let mut case = Case::new(Reach::Own);
    for number in [call::BIND, call::CONNECT] {
        for family in [0, 1, 2, 10, u16::MAX] {
            for (port, scope) in [(0, 0), (1, 1), (80, u32::MAX), (u16::MAX, 7)] {
                case.open_all();
                for ip in ADDRESSES {
                    let addr = RawAddr { family, port, scope, ip: *ip };
                    for (slot, generation) in case.last_sockets() {
                        let request =
                            Request { call: number, slot, generation, addr, ..Request::default() };
                        assert!(case.request(&request).is_some(), "call {number}, {addr:?}");
                    }
                }
                case.honest_works();
            }
        }
    }
    case.end();
}

/// Addresses of both IP versions in network byte order: unspecified, loopback, multicast,
/// broadcast, on the link, IPv4-mapped, and others.
const ADDRESSES: &[[u8; 16]] = &[
    [0; 16],
    [127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [224, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1],
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    [255; 16],
    [10; 16],
];

/// The engine supports exactly the listed commands.
#[test]
fn every_command_with_every_kind_of_socket() {
    for number in 0..2 * op::LAST {
        let is_listed = op::ALL.iter().any(|(_, listed)| *listed == number);
        let mut case = Case::new(Reach::Own);
        case.open_all();
        let mut is_known = false;
        for (slot, generation) in case.handles() {
            let before = case.counter("commands_stale");
            case.tell(Command { op: number, slot, generation, a: 1, ..Command::default() });
            is_known |= case.counter("commands_stale") == before;
            case.honest_works();
        }
        // An accepted connection cannot be accepted again, so ACCEPTED is stale.
        assert_eq!(is_known, is_listed && number != op::ACCEPTED, "command {number}");
        case.end();
    }
}

#[test]
fn every_setting_with_every_value() {
    let mut case = Case::new(Reach::Own);
    case.open_all();
    for number in 0..2 * setting::LAST {
        let is_listed = setting::ALL.iter().any(|(_, listed)| *listed == number);
        for (slot, generation) in case.handles() {
            for value in ARGUMENTS.iter().map(|value| u64::from(*value)).chain([u64::MAX, 1 << 33])
            {
                let before = case.counter("commands_stale");
                let command =
                    Command { op: op::SETTING, slot, generation, a: number, b: value, c: 0 };
                case.tell(command);
                assert_eq!(case.counter("commands_stale") == before, is_listed, "setting {number}");
            }
        }
        case.honest_works();
    }
    case.end();
}
