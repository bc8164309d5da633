//! DHCP server of a port: runs on the port's link, and keeps its leases in a file.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use towpath_dhcp::{DhcpServer, SERVER_PORT, frame};
pub use towpath_dhcp::{LeaseRecord, POOL_MAX, Reservation, ServerConfig};
use towpath_engine::{LinkService, SharedLinkService};
use towpath_pool::{Port, PortCounters};
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use crate::dhcp::{replace, unix_s};
use crate::plan_error::{PlanError, system};
use crate::random::random;
use crate::uplink::now_ns;

/// Minimum interval between reports of changed leases, so that many new leases cause few writes of
/// the file.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);

/// A DHCP server that serves addresses to the hosts on the link of a port.
pub struct LeaseServer {
    service: SharedLinkService<ServerService>,
    changes: Receiver<()>,
    file: Option<PathBuf>,
}

impl LeaseServer {
    /// Creates a server, and reads existing leases from `file`.
    ///
    /// # Errors
    /// Fails if the file cannot be read or has an invalid line, or if the kernel returns no random
    /// bytes.
    pub fn new(config: ServerConfig, file: Option<PathBuf>) -> Result<Self, PlanError> {
        let [a, b, c, d, e, f, g, h, ..] = random()?;
        let mut server = DhcpServer::new(config, u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
        if let Some(path) = &file {
            server.restore(read(path).map_err(system("read the leases"))?);
        }
        let (sender, changes) = channel();
        let service = ServerService { server, changes: Some(sender) };
        Ok(Self { service: SharedLinkService::new(service), changes, file })
    }

    /// Creates a server for a link with one client, which obtains the first address of the pool
    /// whatever identifier it has.
    ///
    /// # Errors
    /// Fails if the kernel returns no random bytes.
    pub fn for_one_client(config: ServerConfig) -> Result<Self, PlanError> {
        let server = Self::new(config, None)?;
        server.service.with(|service| service.server.set_one_client());
        Ok(server)
    }

    /// Wraps the queues of a port, so that the server sends and receives on the port.
    pub fn serve(&self, queues: Vec<Box<dyn Port + Send>>) -> Vec<Box<dyn Port + Send>> {
        queues.into_iter().map(|queue| Box::new(self.service.serve(queue)) as _).collect()
    }

    /// Returns a function that sets the nameservers that the server announces to its clients.
    pub fn nameservers(&self) -> impl Fn(&[Ipv4Addr]) + Send + use<> {
        let service = self.service.clone();
        move |all| service.with(|service| service.server.set_nameservers(all))
    }

    /// Returns a function that replaces the configuration of the DHCP server.
    pub fn changer(&self) -> impl Fn(ServerConfig) + Send + use<> {
        let service = self.service.clone();
        move |config| service.with(|service| service.server.reconfigure(config))
    }

    /// Starts a thread that writes changed leases to the file, and calls `on_leases` with all
    /// leases at the start and after changes. `tell` is called with messages for the user. The
    /// thread ends after the engine has closed the port.
    ///
    /// # Errors
    /// Fails if no thread can be created.
    pub fn follow(
        self,
        tell: impl Fn(String) + Send + 'static,
        on_leases: impl Fn(&[LeaseRecord]) + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let Self { service, changes, file } = self;
        let run = move || {
            let leases = || service.with(|service| service.server.leases(Instant(now_ns())));
            on_leases(&leases());
            while let Ok(()) = changes.recv() {
                while changes.try_recv().is_ok() {}
                let leases = leases();
                on_leases(&leases);
                if let Some(path) = &file
                    && let Err(error) = write(path, &leases)
                {
                    tell(format!("the leases are not kept: {}: {error}", path.display()));
                }
                std::thread::sleep(WRITE_INTERVAL);
            }
        };
        Builder::new().name("towpath-leases".into()).spawn(run)
    }
}

/// The DHCP server, which runs on the engine's thread.
struct ServerService {
    server: DhcpServer,
    /// Notifies the thread that writes the lease file; `None` after the port was closed.
    changes: Option<Sender<()>>,
}

impl LinkService for ServerService {
    fn concerns(bytes: &[u8]) -> bool {
        frame::concerns(bytes, SERVER_PORT)
    }

    fn on_frame(&mut self, now: Instant, bytes: &[u8], is_verified: bool) -> bool {
        let is_taken = self.server.on_frame(now, bytes, is_verified);
        if self.server.take_changed()
            && let Some(changes) = &self.changes
        {
            // Ignore errors: this fails only if no thread writes a file.
            let _ = changes.send(());
        }
        is_taken
    }

    fn on_timeout(&mut self, now: Instant) {
        self.server.on_timeout(now);
    }

    fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.server.poll_frame()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.server.next_timeout()
    }

    fn on_close(&mut self, _: Instant) {
        self.changes = None;
    }

    fn counters(&self) -> PortCounters {
        vec![("dhcp_server", self.server.counters().list().to_vec())]
    }
}

/// Reads the leases from a file, except expired ones. Returns none if the file does not exist. A
/// line contains the IP address, the Ethernet address, and the end in Unix time. The client
/// identifier in hexadecimal digits, and the client's name or `-`, follow.
fn read(path: &Path) -> io::Result<Vec<LeaseRecord>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let mut records = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let record = parse(line).ok_or_else(|| {
            let why = format!("{}: line {number} is no lease: {line:?}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, why)
        })?;
        records.extend(record);
    }
    Ok(records)
}

/// Parses a line of the lease file. The inner value is `None` if the lease has expired.
fn parse(line: &str) -> Option<Option<LeaseRecord>> {
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let [address, mac, until, client, name] = words[..] else { return None };
    let until_s: u64 = until.parse().ok()?;
    let digits = client.as_bytes().as_chunks::<2>();
    let (pairs, []) = digits else { return None };
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let record = LeaseRecord {
        address: address.parse().ok()?,
        mac: mac.parse::<MacAddr>().ok()?,
        client: pairs.iter().map(byte).collect::<Option<_>>()?,
        until: Instant(now_ns()) + Duration::from_secs(until_s.saturating_sub(unix_s())),
        host_name: Some(name).filter(|name| *name != "-").map(str::to_owned),
    };
    Some((until_s > unix_s()).then_some(record))
}

/// Replaces the content of the lease file by `leases`.
fn write(path: &Path, leases: &[LeaseRecord]) -> io::Result<()> {
    let line = |it: &LeaseRecord| {
        let until = unix_s() + it.until.since(Instant(now_ns())).as_secs();
        let client: String = it.client.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = it.host_name.as_deref().unwrap_or("-");
        format!("{} {} {until} {client} {name}\n", it.address, it.mac)
    };
    replace(path, &leases.iter().map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_read_as_written() {
        let path = std::env::temp_dir().join(format!("towpath-leases-{}", std::process::id()));
        let record = |n: u8, host_name: Option<&str>, seconds| LeaseRecord {
            address: Ipv4Addr::new(10, 1, 0, n),
            mac: MacAddr([2, 0, 0, 0, 0, n]),
            client: vec![1, n, 0xff],
            until: Instant(now_ns()) + Duration::from_secs(seconds),
            host_name: host_name.map(str::to_owned),
        };
        let all = [record(1, Some("laptop"), 3600), record(2, None, 60), record(3, None, 0)];
        write(&path, &all).expect("it can be written");
        let found = read(&path).expect("it is valid");
        assert_eq!(found.len(), 2, "one has ended: {found:?}");
        for (found, wanted) in found.iter().zip(&all) {
            let left = found.until.since(Instant(now_ns()));
            assert!(left.abs_diff(wanted.until.since(Instant(now_ns()))) < Duration::from_secs(3));
            assert_eq!(LeaseRecord { until: wanted.until, ..found.clone() }, *wanted);
        }
        for wrong in ["10.1.0.1", "10.1.0.1 02:00:00:00:00:01 9 012 -", "x y 1 00 -"] {
            fs::write(&path, wrong).expect("it can be written");
            let error = read(&path).expect_err(wrong).to_string();
            assert!(error.contains("line 1 is no lease"), "{error}");
        }
        fs::remove_file(&path).expect("it is there");
        assert_eq!(read(&path).expect("no file"), Vec::new());
    }
}
