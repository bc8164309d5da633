//! Opening and closing of stacks, with the options of `struct towpath_options`.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use libc::{size_t, sockaddr, sockaddr_storage, socklen_t};
use towpath::{Builder, Protocol, Stack, StartError};
use towpath_posix::{Errno, Result, address};
use towpath_shm::layout::RawAddr;

use crate::answer::{int, set_message, zero};
use crate::stack::{self, find};

/// `struct towpath_options`.
#[repr(C)]
pub struct StackOptions {
    size: size_t,
    link: *const c_char,
    addresses: *const *const c_char,
    publish: *const *const c_char,
    tcp: *const c_char,
    netem: *const c_char,
    capture: *const c_char,
    mtu: c_uint,
    threads: c_uint,
    linger_ms: c_int,
}

/// `struct towpath_published`.
#[repr(C)]
pub struct PublishedAddress {
    host: sockaddr_storage,
    host_len: socklen_t,
    port: u16,
    protocol: c_int,
}

// `tests/c/header.c` asserts these sizes, too, for the structs of the C header.
const _: () = assert!(size_of::<StackOptions>() == 72 && size_of::<PublishedAddress>() == 144);

impl StackOptions {
    /// Converts the C options to a stack builder.
    ///
    /// # Safety
    /// Each pointer must be null, a string, or a list of strings that ends with a null pointer.
    unsafe fn builder(&self) -> std::result::Result<Builder, StartError> {
        let option = |name, at| {
            // SAFETY: the pointers are null or strings, by the contract of this function.
            unsafe { text(name, at) }
        };
        let mut builder = linked(option("link", self.link)?);
        // SAFETY: the pointers are null or lists of strings, by the contract of this function.
        unsafe {
            for address in list("addresses", self.addresses)? {
                builder = builder.address(address);
            }
            for ports in list("publish", self.publish)? {
                builder = builder.publish(ports);
            }
        }
        if let Some(tcp) = option("tcp", self.tcp)? {
            builder = builder.tcp(tcp);
        }
        if let Some(netem) = option("netem", self.netem)? {
            builder = builder.netem(netem);
        }
        if let Some(capture) = option("capture", self.capture)? {
            builder = builder.capture(capture);
        }
        if self.mtu != 0 {
            builder = builder.mtu(self.mtu);
        }
        if self.threads != 0 {
            builder = builder.shards(self.threads as usize);
        }
        Ok(match self.linger_ms {
            0 => builder,
            ms => builder.linger(Duration::from_millis(ms.try_into().unwrap_or(0))),
        })
    }
}

/// Creates a builder for a link: `None` or "rootless", "loopback", or a device such as `tap:tw0`.
fn linked(link: Option<&str>) -> Builder {
    let builder = Stack::builder();
    match link {
        None | Some("rootless") => builder.rootless(),
        Some("loopback") => builder.loopback(),
        Some(device) => builder.device(device),
    }
}

/// # Safety
/// `at` must be null or a string, which outlives the result.
unsafe fn text<'a>(
    name: &str,
    at: *const c_char,
) -> std::result::Result<Option<&'a str>, StartError> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: `at` is a string, by the contract of this function.
    let text = unsafe { CStr::from_ptr(at) }.to_str();
    text.map(Some).map_err(|_| StartError::Option(format!("{name}: expected UTF-8")))
}

/// # Safety
/// `at` must be null or a list of strings that ends with a null pointer, and outlive the result.
unsafe fn list<'a>(
    name: &str,
    mut at: *const *const c_char,
) -> std::result::Result<Vec<&'a str>, StartError> {
    let mut all = Vec::new();
    while !at.is_null() {
        // SAFETY: the list has not ended yet, and contains strings.
        let Some(text) = unsafe { text(name, *at) }? else { break };
        all.push(text);
        // SAFETY: a further entry follows, because this one is not null.
        at = unsafe { at.add(1) };
    }
    Ok(all)
}

/// Validates that `options` has the size of this library's struct. The struct of a program that was
/// compiled with a different version of the header may be shorter.
///
/// # Safety
/// `options` must be null or point to a struct towpath_options, of which `size` bytes are readable.
unsafe fn checked<'a>(
    options: *const StackOptions,
) -> std::result::Result<Option<&'a StackOptions>, StartError> {
    if options.is_null() {
        return Ok(None);
    }
    // SAFETY: `size` is the first field of every version of the struct.
    let size = unsafe { (&raw const (*options).size).read() };
    if size != size_of::<StackOptions>() {
        let text = "size: expected sizeof(struct towpath_options) of this library's towpath.h";
        return Err(StartError::Option(text.into()));
    }
    // SAFETY: all bytes of the struct are readable, because it has the size of this library's.
    Ok(Some(unsafe { &*options }))
}

/// # Safety
/// `options` must be null or point to a struct towpath_options with valid strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_stack_open(options: *const StackOptions) -> c_int {
    // SAFETY: `options` is null or valid, by the contract of this function.
    let builder = unsafe { checked(options) }.and_then(|options| match options {
        // SAFETY: the strings are valid, by the contract of this function.
        Some(options) => unsafe { options.builder() },
        None => Ok(linked(None)),
    });
    int(builder.and_then(stack::open).map_err(|error| {
        set_message(&error.to_string());
        errno(&error.into())
    }))
}

/// Converts an error of opening a stack to the errno that the C function reports.
fn errno(error: &io::Error) -> Errno {
    let source = error.get_ref().and_then(|error| error.downcast_ref::<StartError>());
    if let Some(StartError::System(source)) = source
        && let Some(errno) = source.raw_os_error()
    {
        return Errno(errno);
    }
    Errno(match error.kind() {
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::AddrInUse => libc::EADDRINUSE,
        ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        ErrorKind::NotFound => libc::ENOENT,
        _ => libc::EIO,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn towpath_stack_close(stack: c_int) -> c_int {
    zero(stack::close(stack))
}

/// # Safety
/// `addr` must point to `*len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_stack_address(
    stack: c_int,
    index: size_t,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let tell = || {
        let object = find(stack)?;
        let ip: IpAddr = *object.stack()?.addresses.get(index).ok_or(Errno(libc::ENOENT))?;
        if addr.is_null() || len.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: `addr` points to `*len` writable bytes, by the contract of this function.
        unsafe { address::write(&RawAddr::new(SocketAddr::new(ip, 0)), addr, len) }
    };
    zero(tell())
}

/// # Safety
/// `port` must be null or point to a struct towpath_published.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_stack_published(
    stack: c_int,
    index: size_t,
    port: *mut PublishedAddress,
) -> c_int {
    let tell = || -> Result<()> {
        let object = find(stack)?;
        let published = *object.stack()?.published.get(index).ok_or(Errno(libc::ENOENT))?;
        if port.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: `port` points to writable memory, which may be uninitialized, and zeros are a
        // valid value.
        let port = unsafe {
            port.write_bytes(0, 1);
            &mut *port
        };
        port.host_len = size_of::<sockaddr_storage>() as socklen_t;
        port.port = published.port;
        port.protocol = match published.protocol {
            Protocol::Udp => libc::IPPROTO_UDP,
            _ => libc::IPPROTO_TCP,
        };
        let host = RawAddr::new(published.host);
        // SAFETY: `port.host` is a sockaddr_storage, which has room for any socket address.
        unsafe { address::write(&host, (&raw mut port.host).cast(), &raw mut port.host_len) }
    };
    zero(tell())
}
