//! Conversion of the caller's slices to the client's buffers.

use std::io::{IoSlice, IoSliceMut};

use towpath_client::Buffer;

/// Maximum number of slices of a vectored call (IOV_MAX). Further slices are left for the next
/// call, as in std.
const SLICES_MAX: usize = 1024;

// `IoSlice` and `IoSliceMut` are documented to be laid out as `struct iovec`, as `Buffer` is.
const _: () = assert!(
    size_of::<Buffer>() == size_of::<IoSlice<'static>>()
        && align_of::<Buffer>() == align_of::<IoSlice<'static>>()
);

/// Returns a slice as a buffer to write to.
pub(crate) fn room(slice: &mut [u8]) -> [Buffer; 1] {
    [Buffer { at: slice.as_mut_ptr(), len: slice.len() }]
}

/// Returns uninitialized memory as a buffer to write to.
#[cfg(feature = "tokio")]
pub(crate) fn vacant_room(slice: &mut [std::mem::MaybeUninit<u8>]) -> [Buffer; 1] {
    [Buffer { at: slice.as_mut_ptr().cast(), len: slice.len() }]
}

/// Returns a slice as a buffer that is only read.
pub(crate) fn bytes(slice: &[u8]) -> [Buffer; 1] {
    [Buffer { at: slice.as_ptr().cast_mut(), len: slice.len() }]
}

/// Returns several slices as buffers to write to.
pub(crate) fn rooms<'a>(slices: &'a mut [IoSliceMut<'_>]) -> &'a [Buffer] {
    let count = slices.len().min(SLICES_MAX);
    // SAFETY: std guarantees that `IoSliceMut` is laid out as iovec, and so as `Buffer`. The
    // slices stay mutably borrowed as long as the result lives.
    unsafe { std::slice::from_raw_parts(slices.as_ptr().cast(), count) }
}

/// Returns several slices as buffers that are only read.
pub(crate) fn all_bytes<'a>(slices: &'a [IoSlice<'_>]) -> &'a [Buffer] {
    let count = slices.len().min(SLICES_MAX);
    // SAFETY: std guarantees that `IoSlice` is laid out as iovec, and so as `Buffer`. The slices
    // stay borrowed as long as the result lives, and are only read.
    unsafe { std::slice::from_raw_parts(slices.as_ptr().cast(), count) }
}
