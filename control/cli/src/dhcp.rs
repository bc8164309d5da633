//! DHCP clients of runs and routers: parses their options, and formats messages about leases.

use std::net::Ipv4Addr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use towpath_config::parse_dhcp_options;
use towpath_engine::{Remote, ResolverConfig};
use towpath_stack::IfaceId;
use towpath_uplink::{DhcpNotice, DhcpSettings, Lease, LeaseClient, LeaseLoss};

use crate::error::{ExitCode, Failure};
use crate::messages::Messages;
use crate::signals::Signals;
use crate::supervise::asked_to_end;

/// Interval at which a run checks for signals while it waits for its first lease.
const LOOK: Duration = Duration::from_millis(100);

/// Parses the value of `--dhcp` for a run. The value may be empty.
pub fn parse_run_settings(options: &str) -> Result<DhcpSettings, String> {
    if options.is_empty() { Ok(DhcpSettings::default()) } else { parse_dhcp_options(options) }
}

/// Waits for the first lease of a run, and applies all its leases. Unless `keeps_dns` is set,
/// programs use the first nameserver of the lease.
///
/// # Errors
/// Returns an error if the lease cannot be used, or if a signal ends the wait.
pub fn obtain(
    client: LeaseClient,
    remote: &Remote,
    messages: &Messages,
    signals: &Signals,
    keeps_dns: bool,
) -> Result<JoinHandle<()>> {
    let (sender, first) = channel();
    let (to, of_thread) = (messages.clone(), remote.clone());
    let tell = move |notice: DhcpNotice| {
        to.say(&describe(&notice));
        match notice {
            DhcpNotice::Bound(lease) => {
                if !keeps_dns {
                    set_resolver(&of_thread, &lease);
                }
                // Ignore the result: only the first message is received.
                let _ = sender.send(Ok(()));
            }
            DhcpNotice::Refused(why) => drop(sender.send(Err(why))),
            DhcpNotice::Lost(_) | DhcpNotice::NotKept(_) => {}
        }
    };
    let thread = client.follow(remote.clone(), IfaceId(1), tell).context("a thread for DHCP")?;
    let failed = |why: String| Failure::error(ExitCode::Failed, why);
    loop {
        match first.recv_timeout(LOOK) {
            Ok(Ok(())) => return Ok(thread),
            Ok(Err(why)) => return Err(failed(format!("the DHCP lease cannot be used: {why}"))),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(failed("the stack has ended before it had an address".to_owned()));
            }
            Err(RecvTimeoutError::Timeout) if asked_to_end(signals)? => {
                return Err(failed("no DHCP server has answered yet".to_owned()));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn set_resolver(remote: &Remote, lease: &Lease) {
    if let Some(address) = lease.nameservers.first() {
        let resolver = ResolverConfig { address: (*address).into(), only_loopback: false };
        // Ignore errors: this fails only if the engine has ended.
        let _ = remote.set_resolver(Some(resolver));
    }
}

/// Formats a notice of the DHCP client as a message for the user.
pub fn describe(notice: &DhcpNotice) -> String {
    match notice {
        DhcpNotice::Bound(lease) => bound(lease),
        DhcpNotice::Lost(LeaseLoss::Expired) => {
            "the DHCP lease has ended, because no server has extended it".to_owned()
        }
        DhcpNotice::Lost(LeaseLoss::InUse(address)) => {
            format!("the DHCP server has offered {address}, which another host uses")
        }
        DhcpNotice::Lost(LeaseLoss::Released) => "the DHCP lease is released".to_owned(),
        DhcpNotice::Lost(_) => "the DHCP server has refused to extend the lease".to_owned(),
        DhcpNotice::Refused(why) => format!("the DHCP lease cannot be used: {why}"),
        DhcpNotice::NotKept(why) => format!("the DHCP lease is not kept: {why}"),
    }
}

fn bound(lease: &Lease) -> String {
    let list =
        |ips: &[Ipv4Addr]| ips.iter().map(Ipv4Addr::to_string).collect::<Vec<_>>().join(", ");
    let nameservers = match &lease.nameservers[..] {
        [] => String::new(),
        all => format!(", nameservers {}", list(all)),
    };
    let via = lease.routes.iter().filter(|route| route.prefix.len() == 0).find_map(|it| it.via);
    let gateway = via.map(|via| format!(", gateway {via}")).unwrap_or_default();
    format!("address {} by DHCP from {}{gateway}{nameservers}", lease.address, lease.server)
}
