//! Stacks in a child of fork(2).

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use towpath::{ShutdownError, Stack};

/// Runs `work` in a child, which exits with 0 when that is true. Gives the child's number.
fn fork(work: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: glibc keeps malloc whole across fork(2), and the child calls nothing else that
    // another thread may have been in the midst of.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let code = if done.is_ok_and(|done| done) { 0 } else { 1 };
            // SAFETY: takes an integer, and does not return.
            unsafe { libc::_exit(code) }
        }
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        child => child,
    }
}

/// The exit status of a child.
fn wait(child: libc::pid_t) -> i32 {
    let mut status = -1;
    // SAFETY: a child of this process, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn a_child_is_refused_and_its_parent_goes_on() {
    let stack = Stack::builder().loopback().linger(Duration::MAX).start().expect("a stack");
    let listener = stack.listen("127.0.0.1:0").expect("a listener");
    let addr = listener.local_addr().expect("bound");
    let mut client = stack.connect(addr).expect("connected");
    let (mut server, _) = listener.accept().expect("accepted");
    server.write_all(b"unread").expect("sent");

    let down = |kind| kind == Some(ErrorKind::NetworkDown);
    let child = fork(|| {
        // The bytes stay for the parent.
        down(client.read(&mut [0; 6]).err().map(|error| error.kind()))
            && down(client.write(b"x").err().map(|error| error.kind()))
            && down(stack.listen("127.0.0.1:0").err().map(|error| error.kind()))
            && matches!(stack.shutdown(), Err(ShutdownError::Forked))
    });
    assert_eq!(wait(child), 0);

    let mut bytes = [0; 6];
    client.read_exact(&mut bytes).expect("received");
    assert_eq!(&bytes, b"unread");
    drop((client, server, listener));
    stack.shutdown().expect("all is sent");
}

#[test]
fn a_child_drops_its_handles_and_starts_a_stack_of_its_own() {
    let stack = Stack::builder().loopback().start().expect("a stack");
    let mut parents = Some((stack.listen("127.0.0.1:0").expect("a listener"), stack));
    let child = fork(|| {
        parents.take();
        let own = Stack::builder().loopback().start().expect("a stack");
        let listener = own.listen("127.0.0.1:0").expect("a listener");
        let mut client = own.connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut server, _) = listener.accept().expect("accepted");
        client.write_all(b"own").expect("sent");
        let mut bytes = [0; 3];
        server.read_exact(&mut bytes).expect("received");
        drop((client, server, listener));
        own.shutdown().expect("all is sent");
        &bytes == b"own"
    });
    assert_eq!(wait(child), 0);
    let (listener, stack) = parents.expect("the child took its copy");
    let client = stack.connect(listener.local_addr().expect("bound"));
    client.expect("the parent's stack works");
}

#[test]
fn a_child_that_lives_on_does_not_hold_up_the_end() {
    let stack = Stack::builder().loopback().linger(Duration::MAX).start().expect("a stack");
    let (mut wait_here, go) = std::io::pipe().expect("a pipe");
    let mut go = Some(go);
    let child = fork(|| {
        drop(go.take());
        wait_here.read(&mut [0]).is_ok_and(|read| read == 0)
    });
    // The child has copies of all descriptors of the stack.
    stack.shutdown().expect("all is sent");
    drop(go);
    assert_eq!(wait(child), 0);
}
