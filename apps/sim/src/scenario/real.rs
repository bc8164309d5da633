//! Keys of hosts and links that lead to real devices.

use std::net::Ipv4Addr;

use towpath_qdisc::QueueLimitsConfig;

use super::error::{ScenarioError, line_of};
use super::file::{HostKeys, Way};
use super::plan::{ExitPlan, HostDevice, HostPlan, PREFIX_LEN, RING_MAX};
use crate::queue::QueueSpec;

/// Parses an address in 10.0.0.0/8, or any address with the prefix length of its network.
pub(super) fn parse_address(words: &str) -> Result<(Ipv4Addr, u8), String> {
    let Some((address, len)) = words.split_once('/') else {
        let parsed: Option<Ipv4Addr> = words.parse().ok();
        let parsed = parsed.filter(|ip| ip.octets()[0] == 10 && ip.octets()[3] != 255);
        return parsed.map(|address| (address, PREFIX_LEN)).ok_or_else(|| {
            format!(
                "the address `{words}` is no IPv4 address in 10.0.0.0/8, on which all hosts are \
                 unless a prefix length is given, as 192.0.2.7/24"
            )
        });
    };
    let parsed = address.parse::<Ipv4Addr>().ok().zip(len.parse::<u8>().ok());
    let parsed = parsed.filter(|(ip, len)| {
        // All bits of the host are 0 in the network's address, and 1 in the broadcast address.
        let host = u32::MAX.checked_shr((*len).into()).unwrap_or(0);
        let is_host = host <= 1 || ![0, host].contains(&(ip.to_bits() & host));
        (1..=32).contains(len) && is_host && !ip.is_unspecified() && !ip.is_multicast()
    });
    parsed.ok_or_else(|| {
        format!("the address `{words}` is no host's; expected ADDRESS/LENGTH, as 192.0.2.7/24")
    })
}

/// Sets the device and the gateway of a host. Refuses keys of a stack for a real host.
pub(super) fn set_keys(
    text: &str,
    keys: &HostKeys,
    plan: &mut HostPlan,
) -> Result<(), ScenarioError> {
    if let Some(gateway) = &keys.gateway {
        let words = gateway.get_ref();
        let message = format!("`gateway` is `{words}`; expected an IPv4 address, as 10.0.1.1");
        let wrong = |_| ScenarioError::at(text, gateway.span().start, message);
        plan.gateway = Some(words.parse().map_err(wrong)?);
    }
    let Some(device) = &keys.device else { return Ok(()) };
    let own = [
        ("gateway", keys.gateway.is_some()),
        ("initial_window", keys.initial_window.is_some()),
        ("recv_buffer", keys.recv_buffer.is_some()),
        ("recv_buffer_max", keys.recv_buffer_max.is_some()),
        ("send_buffer", keys.send_buffer.is_some()),
        ("delayed_ack", keys.delayed_ack.is_some()),
        ("tcp", keys.tcp.is_some()),
    ];
    let at = device.span().start;
    if let Some((key, _)) = own.iter().find(|(_, is_given)| *is_given) {
        let name = &plan.name;
        let message =
            format!("`{name}` is real, because it has a `device`: `{key}` means nothing there");
        return Err(ScenarioError::at(text, at, message));
    }
    let line = line_of(text, at);
    let (words, has_address) = (device.get_ref().clone(), keys.address.is_some());
    plan.device = Some(HostDevice { words, line, has_address });
    Ok(())
}

/// Converts the queue keys of a link without a rate that ends at a real host. The keys configure
/// the queue of this host's device.
pub(super) fn exit_plan(
    text: &str,
    keys: &Way,
    queue: Option<QueueSpec>,
) -> Result<ExitPlan, ScenarioError> {
    let base = ExitPlan { queue, ..ExitPlan::default() };
    let Some(device) = &keys.device else { return Ok(base) };
    let error = |message: String| Err(ScenarioError::at(text, device.span().start, message));
    let keys = device.get_ref();
    if keys.frames.is_some() || keys.delay.is_some() || keys.overhead.is_some() {
        return error(
            "`frames`, `delay` and `overhead` are properties of a simulated device; give the link \
             a rate, or leave them out for the real device"
                .into(),
        );
    }
    let ring = keys.ring.unwrap_or(base.ring);
    if !(1..=RING_MAX).contains(&ring) {
        return error(format!("`ring = {ring}`: expected 1 to {RING_MAX} frames"));
    }
    Ok(ExitPlan { ring, limits: keys.bql.then(QueueLimitsConfig::default), ..base })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_outside_of_the_usual_network_need_a_length() {
        assert_eq!(parse_address("10.0.1.2"), Ok((Ipv4Addr::new(10, 0, 1, 2), 8)));
        let other = Ipv4Addr::new(192, 0, 2, 7);
        assert_eq!(parse_address("192.0.2.7/24"), Ok((other, 24)));
        assert_eq!(parse_address("192.0.2.7/31"), Ok((other, 31)));
        let wrong = ["192.0.2.7", "192.0.2.0/24", "192.0.2.255/24", "192.0.2.7/33", "192.0.2.7/0"];
        for words in wrong {
            assert!(parse_address(words).is_err(), "{words}");
        }
    }
}
