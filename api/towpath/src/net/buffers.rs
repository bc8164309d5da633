//! Slices of the caller, as the client's calls take them.

use std::io::{IoSlice, IoSliceMut};

use towpath_client::Buffer;

/// Slices that one vectored call looks at (IOV_MAX). Further ones are for the next call, as with
/// std.
const SLICES_MAX: usize = 1024;

// `IoSlice` and `IoSliceMut` are documented to be laid out as `struct iovec`, as `Buffer` is.
const _: () = assert!(
    size_of::<Buffer>() == size_of::<IoSlice<'static>>()
        && align_of::<Buffer>() == align_of::<IoSlice<'static>>()
);

/// The room of one slice.
pub(super) fn room(slice: &mut [u8]) -> [Buffer; 1] {
    [Buffer { at: slice.as_mut_ptr(), len: slice.len() }]
}

/// The bytes of one slice, which nobody writes to.
pub(super) fn bytes(slice: &[u8]) -> [Buffer; 1] {
    [Buffer { at: slice.as_ptr().cast_mut(), len: slice.len() }]
}

/// The room of several slices.
pub(super) fn rooms<'a>(slices: &'a mut [IoSliceMut<'_>]) -> &'a [Buffer] {
    let count = slices.len().min(SLICES_MAX);
    // SAFETY: std guarantees that `IoSliceMut` is laid out as iovec, and so as `Buffer`. The
    // slices stay mutably borrowed as long as the result lives.
    unsafe { std::slice::from_raw_parts(slices.as_ptr().cast(), count) }
}

/// The bytes of several slices, which nobody writes to.
pub(super) fn all_bytes<'a>(slices: &'a [IoSlice<'_>]) -> &'a [Buffer] {
    let count = slices.len().min(SLICES_MAX);
    // SAFETY: as for `rooms`, with `IoSlice`, for reading.
    unsafe { std::slice::from_raw_parts(slices.as_ptr().cast(), count) }
}
