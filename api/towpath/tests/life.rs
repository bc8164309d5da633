//! The life of stacks: what they hold, and what they give back.

use std::io::ErrorKind;

use towpath::Stack;

fn stack() -> Stack {
    Stack::builder().loopback().start().expect("a stack")
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("proc").lines().count()
}

#[test]
fn stacks_that_end_give_back_descriptors_and_mappings() {
    // The first ones make what the process and its allocator keep.
    (0..8).for_each(|_| drop(stack()));
    let before = (descriptors(), mappings());
    (0..1000).for_each(|_| drop(stack()));
    // The engine closes descriptors on a thread that may outlive it for a moment. With a leak
    // this does not end.
    while descriptors() > before.0 {
        std::thread::yield_now();
    }
    let after = mappings();
    // An allocator may map an arena more.
    assert!(after < before.1 + 16, "mappings: {before:?} before, {after} after");
}

#[test]
fn a_stack_without_a_link_is_an_error_that_says_what_to_call() {
    let error = Stack::builder().start().expect_err("no link");
    assert!(error.to_string().contains("rootless()"), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), ErrorKind::InvalidInput);
}
