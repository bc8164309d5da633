//! Attaches this process to its engine (the process with the network stack). Tells the engine which
//! sockets this process inherited at exec.

use towpath_client::{Client, Driver, Region};
use towpath_shm::token::Run;
use towpath_shm::{Fd, image};

use crate::environment::ControlPlace;
use crate::{Posix, Result, environment, library, limit, rights};

/// Attaches this process to the engine (the process that runs the TCP/IP stack). The variable
/// TOWPATH_CONTROL has the number of the socket to the engine. Does nothing without that variable,
/// in a set-user-id program, or under valgrind.
///
/// # Errors
/// ENOMEM if the limit of address space (RLIMIT_AS) of this process is too low for the shared
/// memory. Every socket call then fails.
pub fn from_environment(posix: &'static Posix) -> Result<()> {
    let Some((control, descriptors_max)) = socket_from_environment(posix) else { return Ok(()) };
    if let Some(max) = descriptors_max {
        limit::lower(max);
    }
    remember_library(posix);
    control.map_or(Ok(()), |control| over(posix, control, None))
}

/// Returns the control socket (the Unix socket to the engine) that TOWPATH_CONTROL names. Also
/// returns the hard limit of descriptors that this process must set itself. From now on
/// [`Posix::is_active`] is true. The socket is `None` if its descriptor is not open; every socket
/// call then fails. The result is `None` if this process uses the kernel's sockets.
pub fn socket_from_environment(posix: &'static Posix) -> Option<(Option<Fd>, Option<u64>)> {
    // SAFETY: getauxval reads a value that never changes, and has no other effect.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return None;
    }
    // Do not attach under valgrind. valgrind refuses to map the shared memory, and memcheck's leak
    // search would read all 65 GiB. The process uses the kernel's sockets instead, as a statically
    // linked program does. The `towpath` command has warned the user.
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
    // SAFETY: the process that started this program opened this descriptor for it, and nothing else
    // uses the descriptor.
    Some((unsafe { towpath_client::control_from_number(number) }, descriptors_max))
}

/// Stores the current value of LD_PRELOAD, for programs that this program starts. Called once, from
/// the constructor of this library.
pub fn remember_library(posix: &'static Posix) {
    posix.library.remember(environment::preload());
}

/// Attaches this process to the engine, which is the peer of the `control` socket. Tells the engine
/// which sockets were inherited at exec. `driver` runs the engine if it is in this process. Called
/// once per process.
///
/// # Errors
/// ENETDOWN if the engine does not answer, EPROTO if the engine is of a different build. ENOMEM if
/// RLIMIT_AS leaves too little address space, EMFILE if no descriptor is free.
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
