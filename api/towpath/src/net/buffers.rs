//! Conversion of slices to [`Buffer`]s, the type in which the client takes pointers and lengths.

use std::io::{IoSlice, IoSliceMut};

use towpath_client::Buffer;

/// Maximum number of slices that one vectored call handles (IOV_MAX). The next call handles further
/// slices, as in std.
const SLICES_MAX: usize = 1024;

// `IoSlice` and `IoSliceMut` are documented to have the layout of `struct iovec`, and so has
// `Buffer`.
const _: () = assert!(
    size_of::<Buffer>() == size_of::<IoSlice<'static>>()
        && align_of::<Buffer>() == align_of::<IoSlice<'static>>()
);

/// Returns a buffer that refers to a slice, to receive into it.
pub(crate) fn room(slice: &mut [u8]) -> [Buffer; 1] {
    [Buffer { at: slice.as_mut_ptr(), len: slice.len() }]
}

/// Returns a buffer that refers to uninitialized memory, to receive into it.
#[cfg(feature = "tokio")]
pub(crate) fn vacant_room(slice: &mut [std::mem::MaybeUninit<u8>]) -> [Buffer; 1] {
    [Buffer { at: slice.as_mut_ptr().cast(), len: slice.len() }]
}

/// Returns a buffer that refers to a slice, to send from it. The buffer must not be written to.
pub(crate) fn bytes(slice: &[u8]) -> [Buffer; 1] {
    [Buffer { at: slice.as_ptr().cast_mut(), len: slice.len() }]
}

/// Returns buffers that refer to several slices, to receive into them.
pub(crate) fn rooms<'a>(slices: &'a mut [IoSliceMut<'_>]) -> &'a [Buffer] {
    let count = slices.len().min(SLICES_MAX);
    // SAFETY: std guarantees that `IoSliceMut` is laid out as iovec, and so as `Buffer`. The
    // slices stay mutably borrowed as long as the result lives.
    unsafe { std::slice::from_raw_parts(slices.as_ptr().cast(), count) }
}

/// Returns buffers that refer to several slices, to send from them. The buffers must not be written
/// to.
pub(crate) fn all_bytes<'a>(slices: &'a [IoSlice<'_>]) -> &'a [Buffer] {
    let count = slices.len().min(SLICES_MAX);
    // SAFETY: std guarantees that `IoSlice` is laid out as iovec, and so as `Buffer`. The slices
    // stay borrowed as long as the result lives, and are only read.
    unsafe { std::slice::from_raw_parts(slices.as_ptr().cast(), count) }
}
