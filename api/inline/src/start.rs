//! From the socket to towpath to an engine that this process is attached to.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::mpsc::{self, Sender};
use std::thread::Builder;

use towpath_client::Wheel;
use towpath_client::syscall::SignalsBlocked;
use towpath_engine::{Engine, Remote};
use towpath_posix::{Errno, Posix, Result, attach};
use towpath_uplink::{Home, Outfit, Said, Uplink};

use crate::inside::{Inside, State};
use crate::{desk, end};

/// What the thread gives that has made the engine, and stands by.
struct Made {
    wheel: &'static Wheel,
    remote: Remote,
    /// Of this process.
    control: OwnedFd,
}

/// Makes the engine, and attaches this process to it. Without TOWPATH_CONTROL, or in a set-user-id program, nothing.
///
/// # Errors
/// What [`attach::over`] says; ENETDOWN when there is no engine, of which towpath is told why.
pub fn start(posix: &'static Posix) -> Result<()> {
    let Some(socket) = attach::socket_from_environment(posix) else { return Ok(()) };
    let Some(socket) = socket else { return Err(Errno(libc::ENETDOWN)) };
    let home = Home::over(socket);
    let attached = match begin(posix, &home) {
        Ok(Made { wheel, remote, control }) => {
            let attached = attach::over(posix, control.into(), Some(wheel));
            if attached.is_ok() {
                end::remember(posix, wheel, remote.clone());
                desk::start(home.clone(), remote);
            }
            attached.map_err(|Errno(errno)| (Errno(errno), io::Error::from_raw_os_error(errno)))
        }
        Err(error) => Err((Errno(error.raw_os_error().unwrap_or(libc::ENETDOWN)), error)),
    };
    home.mention(&match &attached {
        Ok(()) => Said::Ready,
        Err((_, error)) => Said::Failed(error.to_string()),
    });
    attached.map_err(|(errno, _)| errno)
}

fn begin(posix: &'static Posix, home: &Home) -> io::Result<Made> {
    let (outfit, descriptors) = home.unpack()?;
    replace_library(&outfit.library)?;
    attach::remember_library(posix);
    // The program's handlers run on its own threads.
    let _signals = SignalsBlocked::new();
    let (tell, told) = mpsc::channel();
    let home = home.clone();
    Builder::new().name("towpath-wheel".into()).spawn(move || {
        live(posix, &outfit, descriptors, &home, &tell);
    })?;
    told.recv().map_err(|_| io::ErrorKind::BrokenPipe)?
}

/// The thread that stands by, whose end is the engine's for other processes.
fn live(
    posix: &'static Posix,
    outfit: &Outfit,
    descriptors: Vec<OwnedFd>,
    home: &Home,
    tell: &Sender<io::Result<Made>>,
) {
    let engine = engine(outfit, descriptors, home);
    let made = engine.and_then(|(mut engine, state)| {
        let (control, remote, life) = (engine.attach()?, engine.remote(), engine.live());
        let inside = Box::new(Inside::new(engine, state));
        let wheel = Wheel::new(&posix.process, inside).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let wheel: &'static Wheel = Box::leak(Box::new(wheel));
        Ok((Made { wheel, remote, control }, life))
    });
    let (made, stand_by) = match made {
        Ok((made, life)) => {
            let wheel = made.wheel;
            (Ok(made), Some((wheel, life)))
        }
        Err(error) => (Err(error), None),
    };
    // It is waited for.
    let _ = tell.send(made);
    if let Some((wheel, _life)) = stand_by {
        wheel.stand_by();
    }
}

fn engine(
    outfit: &Outfit,
    mut descriptors: Vec<OwnedFd>,
    home: &Home,
) -> io::Result<(Engine, State)> {
    if descriptors.is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let lifeline = descriptors.remove(0);
    let Uplink { mut config, port, counters } = outfit.uplink(descriptors, home)?;
    config.leave_stalled = end::STALLED;
    let mut seed = [0; 32];
    // Up to 256 bytes come whole once the system has started.
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
    let mut engine = Engine::new(config, vec![port], seed)?;
    engine.set_lifeline(lifeline);
    let (told, strict) = (home.clone(), outfit.strict);
    engine.on_outsider(move |outsider| {
        let (pid, path, why) = (outsider.pid, outsider.path.to_owned(), outsider.why.number());
        told.mention(&Said::Outsider { pid, path, why });
        !strict
    });
    Ok((engine, State::new(home.clone(), counters)))
}

/// In LD_PRELOAD, where this library is the first: programs that this one starts are to load the other one, whichever way
/// they come by their environment.
fn replace_library(library: &OsStr) -> io::Result<()> {
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let others = before.as_bytes().splitn(2, |byte| *byte == b':').nth(1);
    let mut value = library.to_owned().into_vec();
    value.extend(others.into_iter().flat_map(|others| [b":", others].concat()));
    let value = CString::new(value)?;
    // SAFETY: two strings; no other thread is there yet that could read the environment.
    match unsafe { libc::setenv(c"LD_PRELOAD".as_ptr(), value.as_ptr(), 1) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
