//! `libtowpath_inline.so`: the library that runs the engine inside the process of a program.
//! PROGRAM below is the program that `towpath run` executes.
//!
//! The library intercepts the socket functions of libc ([`towpath_symbols`]). TOWPATH_CONTROL
//! contains the number of a socket that is connected to `towpath run`
//! ([`towpath_uplink::LaunchSocket`]). On this socket PROGRAM receives the *launch spec*, the
//! configuration from which it creates the engine. `docs/decisions/0009-inline.md` explains which
//! thread runs the engine.
//!
//! - `start`: creates the engine, and connects PROGRAM to it;
//! - `inside`: the engine, with the functions by which threads run it;
//! - `desk`: the thread that answers messages of `towpath run`; `end`: sends remaining data in
//!   exit(3);
//! - `heap`: an allocator that does not use the program's malloc.

#![warn(missing_docs)]

mod desk;
mod end;
mod heap;
mod inside;
mod start;

#[global_allocator]
static HEAP: heap::Heap = heap::Heap::new();

/// Attaches the process to its engine. Called by the dynamic loader before the program's
/// constructors.
extern "C" fn start() {
    towpath_symbols::start(|posix| {
        towpath_posix::memory_lock::note_engine_memory(posix, || {
            heap::SPARE.prepare();
            start::start(posix)
        })
    });
}

/// Waits for delivery of data. Called by exit(3) after the program's destructors and atexit(3)
/// handlers.
extern "C" fn end() {
    end::end();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
