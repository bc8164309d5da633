//! Clients and server in one program, on one stack.

use std::time::Duration;

use crate::{current_thread, multi_thread};

#[expect(dead_code, reason = "the example's `main` is not called here")]
#[path = "../../../../examples/tokio_both_ends.rs"]
mod example;

#[test]
fn clients_and_server_of_one_program_share_a_stack() {
    for runtime in [current_thread(), multi_thread()] {
        let echoes = runtime.block_on(example::on_stack(10, Duration::from_millis(100)));
        assert!(echoes.expect("answers") >= 10);
    }
}
