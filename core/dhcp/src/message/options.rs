//! Options of a message (RFC 2132, RFC 3396, RFC 3442).

use core::net::Ipv4Addr;
use std::collections::BTreeMap;

use towpath_wire::Prefix;

use super::MessageKind;

/// Maximum length in bytes of one option's value; longer values are split.
const VALUE_MAX: usize = 255;
/// Maximum length of a domain name in text form (RFC 1035 §2.3.4).
const NAME_MAX: usize = 253;

mod code {
    pub const PAD: u8 = 0;
    pub const MASK: u8 = 1;
    pub const ROUTERS: u8 = 3;
    pub const NAMESERVERS: u8 = 6;
    pub const HOST_NAME: u8 = 12;
    pub const DOMAIN: u8 = 15;
    pub const REQUESTED: u8 = 50;
    pub const LEASE: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const KIND: u8 = 53;
    pub const SERVER: u8 = 54;
    pub const PARAMETERS: u8 = 55;
    pub const SIZE_MAX: u8 = 57;
    pub const RENEW: u8 = 58;
    pub const REBIND: u8 = 59;
    pub const CLIENT_ID: u8 = 61;
    pub const ROUTES: u8 = 121;
    pub const END: u8 = 255;
}

/// Options of a DHCP message, except the message type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DhcpOptions {
    /// Address that a client requests.
    pub requested: Option<Ipv4Addr>,
    /// Server identifier: an address of the DHCP server.
    pub server: Option<Ipv4Addr>,
    /// Duration of the lease in seconds; `u32::MAX` is infinite.
    pub lease_s: Option<u32>,
    /// Seconds from the start of the lease until the client renews it (T1).
    pub renew_s: Option<u32>,
    /// Seconds from the start of the lease until the client asks any server to extend it (T2).
    pub rebind_s: Option<u32>,
    /// Prefix length that corresponds to the subnet mask.
    pub mask_len: Option<u8>,
    /// Default routers, the preferred one first.
    pub routers: Vec<Ipv4Addr>,
    /// Nameservers, the preferred one first.
    pub nameservers: Vec<Ipv4Addr>,
    /// Classless static routes (RFC 3442). If present, the client ignores `routers`.
    pub routes: Option<Vec<ClasslessRoute>>,
    /// Host name of the client.
    pub host_name: Option<String>,
    /// Domain in which the client resolves names.
    pub domain: Option<String>,
    /// Client identifier. If it is missing, the Ethernet address identifies the client.
    pub client_id: Option<Vec<u8>>,
    /// Codes of the options that the client requests from the server.
    pub parameters: Vec<u8>,
    /// Maximum length in bytes of DHCP messages that the client accepts.
    pub size_max: Option<u16>,
}

/// A route of the classless static route option (RFC 3442).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClasslessRoute {
    /// Destination network.
    pub prefix: Prefix,
    /// Address of the next router; 0.0.0.0 if the destination is on the link.
    pub via: Ipv4Addr,
}

impl DhcpOptions {
    /// Codes of the options that a client of this crate requests.
    //= https://www.rfc-editor.org/rfc/rfc3442
    //# DHCP clients that support this option and send a parameter request
    //# list MAY also request the Static Routes option, for compatibility
    //# with older servers that don't support Classless Static Routes.  The
    //# Classless Static Routes option code MUST appear in the parameter
    //# request list prior to both the Router option code and the Static
    //# Routes option code, if present.
    pub const REQUESTED: [u8; 7] = [
        code::MASK,
        code::ROUTES,
        code::ROUTERS,
        code::NAMESERVERS,
        code::DOMAIN,
        code::RENEW,
        code::REBIND,
    ];

    /// Parses the options field, and the fields `file` and `sname` if they contain options. Also
    /// returns the type of the message.
    //= https://www.rfc-editor.org/rfc/rfc2131#section-4.1
    //# The options in the 'options' field
    //# MUST be interpreted first, so that any 'option overload' options may
    //# be interpreted.  The 'file' field MUST be interpreted next (if the
    //# 'option overload' option indicates that the 'file' field contains
    //# DHCP options), followed by the 'sname' field.
    pub(super) fn parse(field: &[u8], file: &[u8], sname: &[u8]) -> (Option<MessageKind>, Self) {
        let mut values = BTreeMap::new();
        collect(field, &mut values);
        let overload = values.get(&code::OVERLOAD).and_then(|value| value.first().copied());
        let overload = overload.unwrap_or(0);
        if overload & 1 != 0 {
            collect(file, &mut values);
        }
        if overload & 2 != 0 {
            collect(sname, &mut values);
        }
        let value = |code: u8| values.get(&code).map(Vec::as_slice);
        let number = |code| value(code)?.try_into().ok().map(u32::from_be_bytes);
        let ip = |code| number(code).map(Ipv4Addr::from_bits);
        let list = |code| value(code).and_then(addresses).unwrap_or_default();
        let name = |code| value(code).and_then(name);
        let options = Self {
            requested: ip(code::REQUESTED),
            server: ip(code::SERVER),
            lease_s: number(code::LEASE),
            renew_s: number(code::RENEW),
            rebind_s: number(code::REBIND),
            mask_len: number(code::MASK).and_then(mask_len),
            routers: list(code::ROUTERS),
            nameservers: list(code::NAMESERVERS),
            routes: value(code::ROUTES).and_then(routes),
            host_name: name(code::HOST_NAME),
            domain: name(code::DOMAIN),
            client_id: value(code::CLIENT_ID)
                .filter(|id| (2..=VALUE_MAX).contains(&id.len()))
                .map(<[u8]>::to_vec),
            parameters: value(code::PARAMETERS).unwrap_or_default().to_vec(),
            size_max: value(code::SIZE_MAX)
                .and_then(|value| value.try_into().ok())
                .map(u16::from_be_bytes),
        };
        (value(code::KIND).and_then(MessageKind::parse), options)
    }

    /// Appends the encoded options and the end option to a message.
    pub(super) fn emit(&self, kind: MessageKind, to: &mut Vec<u8>) {
        put(to, code::KIND, &[kind as u8]);
        let numbers = [
            (code::REQUESTED, self.requested.map(Ipv4Addr::to_bits)),
            (code::SERVER, self.server.map(Ipv4Addr::to_bits)),
            (code::LEASE, self.lease_s),
            (code::RENEW, self.renew_s),
            (code::REBIND, self.rebind_s),
            (code::MASK, self.mask_len.map(mask)),
        ];
        for (code, number) in numbers {
            if let Some(number) = number {
                put(to, code, &number.to_be_bytes());
            }
        }
        if let Some(size) = self.size_max {
            put(to, code::SIZE_MAX, &size.to_be_bytes());
        }
        let list = |list: &[Ipv4Addr]| list.iter().flat_map(Ipv4Addr::octets).collect::<Vec<_>>();
        put(to, code::ROUTERS, &list(&self.routers));
        put(to, code::NAMESERVERS, &list(&self.nameservers));
        if let Some(routes) = &self.routes {
            put(to, code::ROUTES, &routes.iter().flat_map(route_bytes).collect::<Vec<_>>());
        }
        let text = |text: &Option<String>| text.clone().unwrap_or_default().into_bytes();
        put(to, code::HOST_NAME, &text(&self.host_name));
        put(to, code::DOMAIN, &text(&self.domain));
        put(to, code::CLIENT_ID, self.client_id.as_deref().unwrap_or_default());
        put(to, code::PARAMETERS, &self.parameters);
        to.push(code::END);
    }
}

/// Adds the options of a field to `values`. Values of the same option are concatenated.
//= https://www.rfc-editor.org/rfc/rfc2131#section-4.1
//# The client concatenates
//# the values of multiple instances of the same option into a single
//# parameter list for configuration.
fn collect(mut field: &[u8], values: &mut BTreeMap<u8, Vec<u8>>) {
    loop {
        let (code, rest) = match field {
            [] | [code::END, ..] => return,
            [code::PAD, rest @ ..] => {
                field = rest;
                continue;
            }
            [code, rest @ ..] => (*code, rest),
        };
        let Some((len, rest)) = rest.split_first() else { return };
        let Some((value, rest)) = rest.split_at_checked(usize::from(*len)) else { return };
        values.entry(code).or_default().extend(value);
        field = rest;
    }
}

/// Appends one option. A value that is too long for one option is split into several (RFC 3396).
/// Nothing is appended for an empty value, because options must not be empty.
fn put(to: &mut Vec<u8>, code: u8, value: &[u8]) {
    for part in value.chunks(VALUE_MAX) {
        to.extend([code, part.len() as u8]);
        to.extend(part);
    }
}

/// Parses a list of IPv4 addresses.
fn addresses(value: &[u8]) -> Option<Vec<Ipv4Addr>> {
    let (list, rest) = value.as_chunks::<4>();
    rest.is_empty().then(|| list.iter().copied().map(Ipv4Addr::from).collect())
}

/// Parses a host or domain name. Other strings are rejected, because the name is written to files
/// and terminals.
fn name(value: &[u8]) -> Option<String> {
    // Remove a trailing NUL byte, which some servers send.
    let value = value.strip_suffix(b"\0").unwrap_or(value);
    let is_valid = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    let fits = (1..=NAME_MAX).contains(&value.len()) && value.iter().all(is_valid);
    fits.then(|| String::from_utf8_lossy(value).into_owned())
}

/// Returns the prefix length of a subnet mask; `None` if its one bits are not contiguous.
fn mask_len(mask: u32) -> Option<u8> {
    let len = mask.leading_ones();
    (mask.checked_shl(len).unwrap_or(0) == 0).then_some(len as u8)
}

/// Returns the subnet mask of a prefix length.
fn mask(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0)
}

/// Parses classless static routes: a prefix length, the significant bytes of the destination, and
/// the router. Bits of the destination after the prefix length are ignored.
///
/// Returns `None` if the option has no route, so that an empty option does not replace the default
/// routers.
fn routes(mut value: &[u8]) -> Option<Vec<ClasslessRoute>> {
    let mut list = Vec::new();
    while let Some((len, rest)) = value.split_first() {
        let significant = usize::from(*len).div_ceil(8);
        let (destination, rest) = rest.split_at_checked(significant)?;
        let (via, rest) = rest.split_first_chunk::<4>()?;
        let mut bytes = [0; 4];
        bytes.get_mut(..significant)?.copy_from_slice(destination);
        let prefix = Prefix::new(Ipv4Addr::from(bytes).into(), *len)?.trunc();
        list.push(ClasslessRoute { prefix, via: Ipv4Addr::from(*via) });
        value = rest;
    }
    (!list.is_empty()).then_some(list)
}

fn route_bytes(route: &ClasslessRoute) -> Vec<u8> {
    let (len, core::net::IpAddr::V4(to)) = (route.prefix.len(), route.prefix.addr()) else {
        return Vec::new();
    };
    let significant = usize::from(len).div_ceil(8);
    [&[len][..], &to.octets()[..significant], &route.via.octets()].concat()
}
