//! How a process finds its engine, and the sockets that it was born with.

use towpath_client::{Client, Driver, Region};
use towpath_shm::token::Run;
use towpath_shm::{Fd, image};

use crate::environment::ControlPlace;
use crate::{Posix, Result, environment, library, limit, rights};

/// Attaches as the environment says; without TOWPATH_CONTROL, in a set-user-id program, or under
/// valgrind, nothing.
///
/// # Errors
/// ENOMEM when this process has a limit of address space (RLIMIT_AS) that leaves no room for the
/// shared memory. When it fails there is no attachment, which every call says.
pub fn from_environment(posix: &'static Posix) -> Result<()> {
    let Some((control, descriptors_max)) = socket_from_environment(posix) else { return Ok(()) };
    if let Some(max) = descriptors_max {
        limit::lower(max);
    }
    remember_library(posix);
    control.map_or(Ok(()), |control| over(posix, control, None))
}

/// The socket that TOWPATH_CONTROL names, and the hard limit of descriptors that this process must
/// set itself. From now on the process counts as attached. No socket: the number is not open, and
/// every call will fail. None: this process is to have the kernel's sockets.
pub fn socket_from_environment(posix: &'static Posix) -> Option<(Option<Fd>, Option<u64>)> {
    // SAFETY: getauxval only looks.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return None;
    }
    // valgrind refuses to map the shared memory, and memcheck's search for leaks would read all of
    // it. To the run it is a static program, of which towpath has told the user.
    if environment::is_under_valgrind() {
        return None;
    }
    let ControlPlace { number, descriptors_max, address_space } = ControlPlace::from_environment()?;
    posix.attachment.activate();
    if let Some(surplus) = address_space {
        limit::take_surplus(surplus);
    }
    if let Some(own) = library::own_path() {
        environment::replace_preload(|all| image::without_runtime(own, all).to_vec());
    }
    // SAFETY: the number was made for us by whoever started this program.
    Some((unsafe { towpath_client::control_from_number(number) }, descriptors_max))
}

/// Notes what programs that this one starts are to load, as LD_PRELOAD says now. Once, from the
/// constructor.
pub fn remember_library(posix: &'static Posix) {
    posix.library.remember(environment::preload());
}

/// Attaches over a control socket, with the sockets that this process image was born with.
/// `driver`: that of the engine, if it is in this process. Once in a process.
///
/// # Errors
/// ENETDOWN when the engine does not answer, EPROTO when it is of another build. ENOMEM when
/// RLIMIT_AS does not leave the address space, EMFILE when no descriptor is free.
pub fn over(posix: &'static Posix, control: Fd, driver: Option<&'static Driver>) -> Result<()> {
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
    posix.attachment.install(match driver {
        Some(driver) => client.hosted_by(driver),
        None => client,
    });
    Ok(())
}
