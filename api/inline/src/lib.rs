//! `libtowpath_inline.so`: the library for a PROGRAM that has the engine of its run in itself.
//!
//! Its functions are those of [`towpath_symbols`], as with the library for all other programs.
//! TOWPATH_CONTROL names no control socket here, but the socket to `towpath run`
//! ([`towpath_uplink::LaunchSocket`]). By it PROGRAM gets the *launch spec*, the parts of an
//! engine. `docs/decisions/0009-inline.md` explains which thread turns the engine.
//!
//! - `start`: from that socket to an engine that PROGRAM is attached to;
//! - `inside`: the engine as its turning threads have it;
//! - `desk`: the thread that answers towpath; `end`: the wait in exit(3);
//! - `heap`: memory, without the program's malloc.

#![warn(missing_docs)]

mod desk;
mod end;
mod heap;
mod inside;
mod start;

#[global_allocator]
static HEAP: heap::Heap = heap::Heap::new();

/// Run by the dynamic loader before the program's own constructors.
extern "C" fn start() {
    towpath_symbols::start(|posix| {
        towpath_posix::memory_lock::note_engine_memory(posix, || {
            heap::SPARE.prepare();
            start::start(posix)
        })
    });
}

/// Run by exit(3) after the program's own destructors, and its functions of atexit(3).
extern "C" fn end() {
    end::end();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
