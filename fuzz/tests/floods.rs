//! Tests floods of requests of every kind. The work of a turn stays bounded ([`Case::turn`]), and
//! the honest program is served.

use std::time::Duration;

use towpath_fuzz::engine::{Case, Reach, WORK_A_TURN_MAX};
use towpath_shm::control::{Request, call};
use towpath_shm::layout::{COMMANDS_MAX, Command, op, setting, shut};

/// More than the engine handles of any kind in one turn.
const MANY: usize = 3000;
/// More sockets than the maximum steps of work in a turn.
const MORE: usize = WORK_A_TURN_MAX as usize + 1000;

fn case() -> Case {
    Case::new(Reach::Own)
}

#[test]
fn each_command_as_often_as_the_ring_holds_it() {
    for &(_, op) in op::ALL {
        let mut case = case();
        case.open_all();
        for a in [1, shut::READ | shut::WRITE, setting::RCVBUF] {
            case.fill_ring(Command { op, a, b: 1 << 20, ..Command::default() });
            case.honest_works();
        }
        case.end();
    }
}

#[test]
fn each_call_as_often_as_the_control_socket_holds_it() {
    for &(_, number) in call::ALL {
        let mut case = case();
        case.open_all();
        for (slot, generation) in case.last_sockets() {
            case.ask_often(&Request {
                call: number,
                slot,
                generation,
                a: 2,
                b: 6,
                ..Request::default()
            });
            case.honest_works();
        }
        case.end();
    }
}

#[test]
fn full_rings_of_many_programs_before_a_request() {
    let mut case = case();
    for _ in 0..5 {
        case.open(17, 40);
        case.attach();
    }
    case.open(17, 40);
    case.fill_rings(Command { op: op::SHUTDOWN, a: shut::READ, ..Command::default() });
    case.honest_works();
    case.end();
}

#[test]
fn a_ring_full_of_closes() {
    let mut case = case();
    case.open(6, MANY);
    case.fill_ring(Command { op: op::CLOSE, ..Command::default() });
    case.honest_works();
    case.turn_until("sockets", MANY as u64 + 4 - u64::from(COMMANDS_MAX));
    case.end();
}

#[test]
fn a_process_with_many_sockets_ends() {
    let mut case = case();
    case.open(17, MANY);
    case.kill();
    case.honest_works();
    case.turn_until("channels", 1);
    assert_eq!(case.counter("sockets"), 4);
    case.end();
}

#[test]
fn a_process_with_a_full_ring_ends() {
    let mut case = case();
    case.open(17, MANY);
    case.fill_ring(Command { op: op::SHUTDOWN, a: shut::READ, ..Command::default() });
    case.kill();
    case.honest_works();
    case.turn_until("channels", 1);
    case.end();
}

#[test]
fn a_process_with_many_sockets_forks() {
    let mut case = case();
    case.open(17, MORE);
    case.fork();
    case.honest_works();
    // Sockets that the child holds only through its parent are not closed with the parent.
    case.kill();
    case.fork();
    case.end();
}

#[test]
fn a_process_with_many_sockets_ends_while_it_forks() {
    let mut case = case();
    case.open(17, MORE);
    case.begin_fork();
    case.kill();
    case.honest_works();
    case.turn_until("channels", 1);
    case.end();
}

/// A correct process waits for the reply before the next request.
#[test]
fn a_process_with_many_sockets_forks_twice_at_once() {
    let mut case = case();
    case.open(17, MORE);
    case.begin_fork();
    case.begin_fork();
    case.honest_works();
    case.turn_until("channels", 1);
    assert_eq!(case.counter("hostile_channels"), 1);
    case.end();
}

/// A process executes a program that inherits no sockets.
#[test]
fn a_process_with_many_sockets_says_hello_without_them() {
    let mut case = case();
    case.open(17, MORE);
    let hello = Request { call: call::HELLO, ..Request::default() };
    assert_eq!(case.answer(&hello), 0);
    case.honest_works();
    case.turn_until("sockets", 4);
    case.end();
}

#[test]
fn a_listener_with_a_full_queue_is_closed() {
    let mut case = case();
    let listener = case.fill_queue(MANY);
    case.tell(Command {
        op: op::CLOSE,
        slot: listener.slot,
        generation: listener.generation,
        ..Command::default()
    });
    case.honest_works();
    case.turn_until("sockets", MANY as u64 + 4);
    case.end();
}

#[test]
fn a_process_ends_that_took_many_connections_and_claimed_none() {
    let mut case = case();
    let listener = case.fill_queue(MANY);
    case.pop_all(listener);
    case.kill();
    case.honest_works();
    case.turn_until("channels", 1);
    case.turn(Duration::from_secs(2));
    case.honest_works();
    case.end();
}

#[test]
fn a_socket_with_many_datagrams_is_closed() {
    let mut case = case();
    case.open(17, 1);
    case.fill_with_datagrams();
    case.fill_ring(Command { op: op::CLOSE, ..Command::default() });
    case.honest_works();
    case.turn_until("sockets", 4);
    assert!(case.counter("datagrams_refused") < 10, "they are sent, though nobody waits for them");
    case.end();
}

/// Repeated TX commands do not increase the work of a turn.
#[test]
fn a_socket_with_many_datagrams_says_so_often() {
    let mut case = case();
    case.open(17, 1);
    case.fill_with_datagrams();
    case.fill_ring(Command { op: op::TX, ..Command::default() });
    case.turn(Duration::ZERO);
    let before = case.counter("work");
    case.turn(Duration::ZERO);
    let each = (case.counter("work") - before) / 256;
    assert!(each <= 1, "{each} steps a command");
    case.honest_works();
    case.end();
}

#[test]
fn many_sockets_in_messages_are_never_received() {
    let mut case = case();
    case.open(17, MANY);
    case.mark_in_flight();
    case.kill();
    case.turn_until("channels", 1);
    case.honest_works();
    case.turn(Duration::from_secs(31));
    case.honest_works();
    case.turn_until("sockets", 4);
    case.end();
}
