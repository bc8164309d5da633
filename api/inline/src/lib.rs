//! `libtowpath_inline.so`: the library for a PROGRAM that has the engine of its run in itself.
//!
//! Its functions are those of [`towpath_symbols`], as the library's for all other programs. What
//! TOWPATH_CONTROL names here is no control socket, but the one to `towpath run`
//! ([`towpath_uplink::Home`]), by which PROGRAM is told of what to make an engine.
//! `docs/decisions/0009-inline.md` says who turns it.
//!
//! - `start`: from that socket to an engine that PROGRAM is attached to; `inside`: the engine as
//!   who turns it has it;
//! - `desk`: the thread that answers towpath; `end`: what exit(3) waits for;
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
    towpath_symbols::start(start::start);
}

/// Run by exit(3) after the program's own destructors, and what it has registered with atexit(3).
extern "C" fn end() {
    end::end();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
