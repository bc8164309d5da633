//! Creates the engine from the launch spec (its configuration, sent by `towpath run`), and connects
//! this process to it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{self, Sender};
use std::thread::Builder;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use towpath_client::Driver;
use towpath_client::syscall::SignalsBlocked;
use towpath_engine::{Engine, Remote};
use towpath_posix::{Errno, Posix, Result, attach, environment, exec, limit};
use towpath_shm::{Fd, placed};
use towpath_uplink::{LaunchSocket, LaunchSpec, Said, Uplink};

use crate::inside::{EngineEnd, Inside};
use crate::{desk, end};

/// Exit status if the engine cannot be started, as for a failure of env(1).
const FAILED: usize = 125;

/// Message of the driver thread, sent after it has created the engine.
struct Made {
    driver: &'static Driver,
    remote: Remote,
    /// Control socket by which this process is attached to the engine.
    control: Fd,
}

/// Creates the engine, and connects this process to it. Does nothing without TOWPATH_CONTROL, or in
/// a set-user-id program.
///
/// If the engine cannot be created, reports the reason to `towpath run`, and ends the process with
/// status 125.
///
/// # Errors
/// Returns ENETDOWN if the socket to `towpath run` does not exist.
pub fn start(posix: &'static Posix) -> Result<()> {
    let Some((socket, descriptors_max)) = attach::socket_from_environment(posix) else {
        return Ok(());
    };
    let Some(socket) = socket else { return Err(Errno(libc::ENETDOWN)) };
    let lowest = make_room(posix, descriptors_max);
    let home = LaunchSocket::over(placed(lowest, || Fd::from(socket.into_owned())));
    let attached = match begin(posix, &home) {
        Ok(Made { driver, remote, control }) => {
            let attached = attach::over(posix, control, Some(driver));
            if attached.is_ok() {
                end::remember(posix, driver, remote.clone(), home.clone());
                desk::start(home.clone(), remote);
            }
            attached.map_err(|Errno(errno)| io::Error::from_raw_os_error(errno))
        }
        Err(error) => Err(error),
    };
    match attached {
        Ok(()) => home.mention(&Said::Ready),
        Err(error) => {
            home.mention(&Said::Failed(error.to_string()));
            end_before_it_begins();
        }
    }
    Ok(())
}

/// Ends the process before the program runs, because the engine could not be created.
fn end_before_it_begins() {
    let args = [FAILED, 0, 0, 0, 0, 0];
    // SAFETY: exit_group(2) has no memory arguments.
    let _ = unsafe { towpath_client::syscall::syscall(libc::SYS_exit_group as usize, args) };
}

fn begin(posix: &'static Posix, home: &LaunchSocket) -> io::Result<Made> {
    let lowest = posix.process.descriptors.engines_from();
    let (outfit, descriptors) = placed(lowest, || home.unpack())?;
    widen(posix, outfit.link.descriptors_used_max());
    let own = replace_library(&outfit.library);
    exec::host(posix, Fd::from(rustix::io::fcntl_dupfd_cloexec(home, 0)?), own);
    attach::remember_library(posix);
    // Block signals, because the program's handlers must run on the program's threads.
    let _signals = SignalsBlocked::new();
    let (tell, told) = mpsc::channel();
    let home = home.clone();
    Builder::new().name("towpath-driver".into()).spawn(move || {
        live(posix, &outfit, descriptors, &home, &tell);
    })?;
    told.recv().map_err(|_| io::ErrorKind::BrokenPipe)?
}

/// Runs the driver thread, which drives the engine. When this thread ends, other processes see that
/// the engine has ended.
fn live(
    posix: &'static Posix,
    outfit: &LaunchSpec,
    descriptors: Vec<Fd>,
    home: &LaunchSocket,
    tell: &Sender<io::Result<Made>>,
) {
    let lowest = posix.process.descriptors.engines_from();
    let made = placed(lowest, || {
        let (mut engine, state) = engine(outfit, descriptors, lowest, home)?;
        let (control, remote, life) =
            (engine.attach_host()?.into(), engine.remote(), engine.live());
        let inside = Box::new(Inside::new(engine, state));
        let driver = Driver::new(&posix.process, inside).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let driver: &'static Driver = Box::leak(Box::new(driver));
        Ok((Made { driver, remote, control }, life))
    });
    let (made, stand_by) = match made {
        Ok((made, life)) => {
            let driver = made.driver;
            (Ok(made), Some((driver, life)))
        }
        Err(error) => (Err(error), None),
    };
    // The send cannot fail, because the receiver waits for this result.
    let _ = tell.send(made);
    if let Some((driver, _life)) = stand_by {
        driver.stand_by();
    }
}

fn engine(
    outfit: &LaunchSpec,
    mut descriptors: Vec<Fd>,
    lowest: u32,
    home: &LaunchSocket,
) -> io::Result<(Engine, EngineEnd)> {
    if descriptors.is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let death_pipe = descriptors.remove(0);
    let many = descriptors_left(lowest);
    let Uplink { config, port, counters, replay } = outfit.uplink(descriptors, many, home)?;
    let mut seed = [0; 32];
    // getrandom(2) returns at most 256 bytes without interruption, so one call fills the seed.
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
    let mut engine = Engine::new(config, vec![port], seed)?;
    engine.set_parent_death_pipe(death_pipe.into_owned());
    let told = home.clone();
    engine.on_conflict(move |found| {
        let mac = found.mac.map(|mac| mac.0);
        let (addr, is_given_up) = (found.addr, found.is_given_up);
        told.mention(&Said::Conflict { addr, mac, is_given_up });
    });
    if let Some(end) = replay {
        let (remote, tells) = (engine.remote(), home.clone());
        let tell = move || {
            end.wait(&remote).into_iter().for_each(|text| tells.mention(&Said::ReplayEnded(text)));
        };
        Builder::new().name("towpath-replay".into()).spawn(tell)?;
    }
    let (told, strict) = (home.clone(), outfit.strict);
    engine.on_unintercepted(move |outsider| {
        let (pid, path, why) = (outsider.pid, outsider.path.to_owned(), outsider.why.number());
        told.mention(&Said::Outsider { pid, path, why });
        !strict
    });
    Ok((engine, EngineEnd::new(home.clone(), counters)))
}

/// Replaces the first library in LD_PRELOAD, which is this one, by `library`. Returns the path of
/// this library. Programs that this process executes then load `library`.
fn replace_library(library: &OsStr) -> Vec<u8> {
    let mut own = Vec::new();
    environment::replace_preload(|before| {
        let mut parts = before.splitn(2, |byte| *byte == b':');
        own.extend_from_slice(parts.next().unwrap_or_default());
        let all = std::iter::once(library.as_bytes()).chain(parts.next());
        all.collect::<Vec<_>>().join(&b':')
    });
    own
}

/// Upper bound on the lowest descriptor number of the engine. The kernel's descriptor table is as
/// long as the highest number, and fork copies the table. The engine gets the last quarter below
/// this bound or the hard limit, and more if needed ([`widen`]).
const HIGHEST: u64 = 65_536;

/// Reserves descriptor numbers above the soft limit (RLIMIT_NOFILE) for the engine. Lowers the soft
/// limit if it equals the hard limit. `program` is the hard limit of the program that executed this
/// one, if known. Returns the lowest reserved number.
fn make_room(posix: &'static Posix, program: Option<u64>) -> u32 {
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    let (soft, quarter) = (limit.current.unwrap_or(hard), hard.min(HIGHEST) / 4 * 3);
    let lowest = if soft < hard.min(HIGHEST) / 8 * 7 { soft.max(quarter) } else { quarter };
    give_to_engine(posix, lowest);
    if let Some(max) = program {
        limit::set_lowered(posix, max);
    }
    lowest as u32
}

/// Reserves more descriptor numbers for the engine, up to `many`, before the program opens
/// descriptors. The engine gets at most half of the hard limit: each client connection needs one
/// number of the engine and one of the program.
fn widen(posix: &'static Posix, many: usize) {
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let lowest = hard.saturating_sub(many as u64).max(hard.min(HIGHEST) / 2);
    if lowest < u64::from(posix.process.descriptors.engines_from()) {
        give_to_engine(posix, lowest);
    }
}

/// Reserves all descriptor numbers from `lowest` on for the engine.
fn give_to_engine(posix: &'static Posix, lowest: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|soft| soft > lowest) {
        // Ignore errors, because lowering the soft limit is always permitted.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(lowest), ..limit });
    }
    posix.process.descriptors.give_to_engine(lowest as u32);
}

/// Returns how many descriptors the engine can have between `lowest` and the hard limit.
fn descriptors_left(lowest: u32) -> u32 {
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    u32::try_from(hard).unwrap_or(u32::MAX).saturating_sub(lowest)
}
