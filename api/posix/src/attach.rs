//! How a process finds its engine, and the sockets that it was born with.

use towpath_client::{Client, Region, Wheel};
use towpath_shm::Fd;
use towpath_shm::token::Run;

use crate::{Posix, Result, environment, rights};

/// Attaches as the environment says; without TOWPATH_CONTROL, or in a set-user-id program, nothing.
///
/// # Errors
/// ENOMEM when this process has a limit of address space (RLIMIT_AS) that leaves no room for the shared memory.
/// When it fails there is no attachment, which every call says.
pub fn from_environment(posix: &'static Posix) -> Result<()> {
    // SAFETY: getauxval only looks.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return Ok(());
    }
    posix.library.remember(environment::preload());
    let Some(number) = environment::control_number() else {
        return Ok(());
    };
    // SAFETY: the number was made for us by whoever started this program.
    let control = unsafe { towpath_client::control_from_number(number) };
    posix.attachment.activate();
    control.map_or(Ok(()), |control| over(posix, control, None))
}

/// Attaches over a control socket, with the sockets that this process image was born with. `wheel`: that of the engine,
/// if it is in this process. Once in a process.
///
/// # Errors
/// ENETDOWN when nobody answers, EPROTO when the engine is of another build, ENOMEM when this process may not have
/// the address space (RLIMIT_AS), EMFILE when it has no descriptors left.
pub fn over(posix: &'static Posix, control: Fd, wheel: Option<&'static Wheel>) -> Result<()> {
    let claims = rights::inherited();
    let mut born_with = Vec::new();
    let held = |region: &Region, run: Run| {
        born_with.extend(
            claims.iter().filter_map(|claim| Some((claim.fd(), claim.resolve(region, run)?))),
        );
        born_with.iter().map(|&(_, socket)| socket).collect()
    };
    let client = Client::attach(&posix.process, control, (!claims.is_empty()).then_some(held))?;
    for (fd, socket) in born_with {
        posix.process.descriptors.set_socket(fd, socket);
    }
    posix.attachment.make_page()?;
    posix.attachment.activate();
    posix.attachment.install(match wheel {
        Some(wheel) => client.hosted_by(wheel),
        None => client,
    });
    Ok(())
}
