use towpath_shm::control::{Interface, NeighborRecord, Route, Traffic, route_origin};
use towpath_shm::layout::RawAddr;

use super::super::codec::{NetlinkMessages, attribute, requests, u16_at, u32_at};
use super::{IFINFO_LEN, NDMSG_LEN, RTMSG_LEN, StackTables, answer};
use crate::listing::ListedCounters;

const DUMP: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
const ONE: u16 = libc::NLM_F_REQUEST as u16;
const SEQUENCE: u32 = 77;
const PORT: u32 = 4711;

fn addr(ip: &str) -> RawAddr {
    RawAddr::new(std::net::SocketAddr::new(ip.parse().unwrap(), 0))
}

fn interface(name: &str, index: u32, flags: i32, cidr: (&str, u32)) -> Interface {
    let mut padded = [0; 16];
    padded[..name.len()].copy_from_slice(name.as_bytes());
    let (mtu, flags) = (1400 + index, flags as u32);
    Interface {
        name: padded,
        index,
        mtu,
        flags,
        addr: addr(cidr.0),
        prefix_len: cidr.1,
        ..Interface::default()
    }
}

fn interfaces() -> Vec<Interface> {
    let up = libc::IFF_UP | libc::IFF_RUNNING;
    let ethernet = up | libc::IFF_BROADCAST | libc::IFF_MULTICAST;
    vec![
        interface("lo", 1, up | libc::IFF_LOOPBACK, ("127.0.0.1", 8)),
        interface("lo", 1, up | libc::IFF_LOOPBACK, ("::1", 128)),
        interface("eth0", 2, ethernet, ("10.77.0.2", 24)),
        interface("eth0", 2, ethernet, ("fd00:77::2", 64)),
        interface("eth0", 2, ethernet, ("fe80::2", 64)),
    ]
}

fn routes() -> Vec<Route> {
    let via = |dst: &str, prefix_len, gateway: RawAddr, metric, origin| Route {
        dst: addr(dst),
        gateway,
        prefix_len,
        index: 2,
        metric,
        origin,
        mtu: 0,
        weight: 1,
    };
    let direct = RawAddr::default();
    vec![
        via("10.77.0.0", 24, direct, 0, route_origin::LINK),
        via("fe80::", 64, direct, 0, route_origin::LINK),
        via("0.0.0.0", 0, addr("10.77.0.1"), 0, route_origin::STATIC),
        via("::", 0, addr("fe80::1"), 1024, route_origin::ROUTER),
        Route { mtu: 1300, ..via("10.9.0.0", 16, addr("10.77.0.1"), 5, route_origin::STATIC) },
        Route {
            index: 3,
            weight: 200,
            ..via("10.9.0.0", 16, addr("10.78.0.1"), 5, route_origin::STATIC)
        },
        via("10.9.0.0", 16, addr("10.77.0.3"), 6, route_origin::STATIC),
    ]
}

/// A message of an answer: type, flags, and body.
type Message = (u16, u16, Vec<u8>);

fn ask(kind: u16, flags: u16, body: impl FnOnce(&mut NetlinkMessages)) -> Vec<Message> {
    ask_checked(kind, flags, false, body)
}

/// As [`ask`]; `is_strict` says whether NETLINK_GET_STRICT_CHK is set.
fn ask_checked(
    kind: u16,
    flags: u16,
    is_strict: bool,
    body: impl FnOnce(&mut NetlinkMessages),
) -> Vec<Message> {
    let mut request = NetlinkMessages::new();
    request.begin(kind, flags, SEQUENCE, 0);
    body(&mut request);
    request.end();
    let (interfaces, routes) = (interfaces(), routes());
    let mut counted = ListedCounters::default();
    counted.links[1] =
        Traffic { rx_packets: 3, rx_bytes: 5 << 32, tx_dropped: 7, ..Traffic::default() };
    let mac = [2, 0, 0, 0, 0, 9];
    let known = NeighborRecord { index: 2, state: 2, known: 1, mac, ..NeighborRecord::default() };
    let neighbors = [
        NeighborRecord { addr: addr("10.77.0.1"), ..known },
        NeighborRecord { addr: addr("fd00:77::1"), flags: 0x80, state: 4, ..known },
        NeighborRecord { addr: addr("10.77.0.3"), state: 1, known: 0, ..known },
    ];
    let stack = StackTables {
        interfaces: &interfaces,
        routes: &routes,
        neighbors: &neighbors,
        counted: &counted,
    };
    let mut all = Vec::new();
    answer(request.bytes(), PORT, is_strict, stack, &mut |datagram| {
        for message in requests(datagram) {
            assert_eq!((message.sequence, u32_at(message.header, 12)), (SEQUENCE, Some(PORT)));
            all.push((message.kind, message.flags, message.body.to_vec()));
        }
        Ok(())
    })
    .unwrap();
    all
}

/// A dump without its end.
fn dump(kind: u16, body: impl FnOnce(&mut NetlinkMessages)) -> Vec<Vec<u8>> {
    let mut all = ask(kind, DUMP, body);
    let (last, ..) = all.pop().unwrap();
    assert_eq!(i32::from(last), libc::NLMSG_DONE);
    assert!(all.iter().all(|message| message.1 == libc::NLM_F_MULTI as u16));
    all.into_iter().map(|message| message.2).collect()
}

fn error(messages: &[Message]) -> i32 {
    let [(kind, _, body)] = messages else { panic!("{messages:?}") };
    assert_eq!(i32::from(*kind), libc::NLMSG_ERROR);
    -(u32_at(body, 0).unwrap() as i32)
}

fn text(body: &[u8], kind: u16) -> String {
    let value = attribute(&body[IFINFO_LEN..], kind).unwrap();
    String::from_utf8(value[..value.len() - 1].to_vec()).unwrap()
}

#[test]
fn links_are_the_stacks() {
    for all in [dump(libc::RTM_GETLINK, |_| {}), dump(libc::RTM_GETLINK, |to| to.put(&[0; 16]))] {
        let names: Vec<_> = all.iter().map(|body| text(body, libc::IFLA_IFNAME)).collect();
        assert_eq!(names, ["lo", "eth0"]);
        assert_eq!(u32_at(&all[1], 4), Some(2));
        assert_eq!(u16_at(&all[1], 2), Some(libc::ARPHRD_ETHER));
        let mtu = attribute(&all[1][IFINFO_LEN..], libc::IFLA_MTU).unwrap();
        assert_eq!(mtu, 1402u32.to_ne_bytes());
    }
}

#[test]
fn one_link_is_found_by_index_and_by_name() {
    let by_index = |index: u32| {
        ask(libc::RTM_GETLINK, ONE, |to| {
            to.put(&[0; 4]);
            to.put(&index.to_ne_bytes());
            to.put(&[0; 8]);
        })
    };
    let by_name = |name: &[u8]| {
        ask(libc::RTM_GETLINK, ONE, |to| {
            to.put(&[0; IFINFO_LEN]);
            to.text(libc::IFLA_IFNAME, name);
        })
    };
    for found in [by_index(2), by_name(b"eth0")] {
        assert_eq!((found.len(), found[0].0, found[0].1), (1, libc::RTM_NEWLINK, 0));
        assert_eq!(text(&found[0].2, libc::IFLA_IFNAME), "eth0");
    }
    assert_eq!(error(&by_index(3)), libc::ENODEV);
    assert_eq!(error(&by_name(b"eth1")), libc::ENODEV);
}

#[test]
fn addresses_are_those_of_the_family_asked_for() {
    let of = |family: i32| dump(libc::RTM_GETADDR, |to| to.put(&[family as u8, 0, 0, 0]));
    assert_eq!(of(libc::AF_UNSPEC).len(), 5);
    let v4 = of(libc::AF_INET);
    let octets: Vec<_> =
        v4.iter().map(|body| attribute(&body[8..], libc::IFA_LOCAL).unwrap()).collect();
    assert_eq!(octets, [[127, 0, 0, 1], [10, 77, 0, 2]]);
    assert_eq!(attribute(&v4[1][8..], libc::IFA_BROADCAST), Some(&[10, 77, 0, 255][..]));
    assert_eq!(attribute(&v4[0][8..], libc::IFA_BROADCAST), None);
    let scopes: Vec<_> = of(libc::AF_INET6).iter().map(|body| body[3]).collect();
    assert_eq!(scopes, [libc::RT_SCOPE_HOST, libc::RT_SCOPE_UNIVERSE, libc::RT_SCOPE_LINK]);
}

fn table(body: &[u8]) -> u8 {
    body[4]
}

#[test]
fn routes_are_in_the_main_table_and_own_addresses_in_the_local_one() {
    let all = dump(libc::RTM_GETROUTE, |to| to.put(&[libc::AF_INET as u8, 0, 0, 0]));
    let main: Vec<_> = all.iter().filter(|body| table(body) == libc::RT_TABLE_MAIN).collect();
    assert_eq!((main.len(), all.len()), (4, 6));
    let link = &main[0][RTMSG_LEN..];
    assert_eq!(attribute(link, libc::RTA_DST), Some(&[10, 77, 0, 0][..]));
    assert_eq!(attribute(link, libc::RTA_PREFSRC), Some(&[10, 77, 0, 2][..]));
    assert_eq!((main[0][1], main[0][6]), (24, libc::RT_SCOPE_LINK));
    let default = &main[1][RTMSG_LEN..];
    assert_eq!((main[1][1], attribute(default, libc::RTA_DST)), (0, None));
    assert_eq!(attribute(default, libc::RTA_GATEWAY), Some(&[10, 77, 0, 1][..]));
    assert_eq!(attribute(default, libc::RTA_OIF), Some(&2u32.to_ne_bytes()[..]));
    let local = all.iter().find(|body| table(body) == libc::RT_TABLE_LOCAL).unwrap();
    assert_eq!((local[1], local[7]), (8, libc::RTN_LOCAL));
    let v6 = dump(libc::RTM_GETROUTE, |to| {
        to.put(&[libc::AF_INET6 as u8, 0, 0, 0, libc::RT_TABLE_MAIN, 0, 0, 0, 0, 0, 0, 0]);
    });
    assert_eq!(v6.len(), 2);
    assert_eq!(
        attribute(&v6[1][RTMSG_LEN..], libc::RTA_PRIORITY),
        Some(&1024u32.to_ne_bytes()[..])
    );
}

#[test]
fn equal_routes_are_one_with_several_next_hops() {
    let all = dump(libc::RTM_GETROUTE, |to| to.put(&[libc::AF_INET as u8, 0, 0, 0]));
    let to_it =
        |body: &&Vec<u8>| attribute(&body[RTMSG_LEN..], libc::RTA_DST) == Some(&[10, 9, 0, 0][..]);
    let [both, one] = all.iter().filter(to_it).collect::<Vec<_>>()[..] else { panic!("two") };
    let (both, one) = (&both[RTMSG_LEN..], &one[RTMSG_LEN..]);
    let hop = |index: u32, weight: u8, gateway: [u8; 4]| {
        let mut hop = vec![16, 0, 0, weight - 1];
        hop.extend(index.to_ne_bytes());
        hop.extend([8, 0, libc::RTA_GATEWAY as u8, 0]);
        hop.extend(gateway);
        hop
    };
    let hops = [hop(2, 1, [10, 77, 0, 1]), hop(3, 200, [10, 78, 0, 1])].concat();
    assert_eq!(attribute(both, libc::RTA_MULTIPATH), Some(&hops[..]));
    assert_eq!(attribute(both, libc::RTA_GATEWAY), None);
    assert_eq!(attribute(both, libc::RTA_PRIORITY), Some(&5u32.to_ne_bytes()[..]));
    let metrics = attribute(both, libc::RTA_METRICS).unwrap();
    assert_eq!(attribute(metrics, 2), Some(&1300u32.to_ne_bytes()[..]));
    assert_eq!(attribute(one, libc::RTA_GATEWAY), Some(&[10, 77, 0, 3][..]));
    assert_eq!(attribute(one, libc::RTA_METRICS), None);
}

#[test]
fn the_way_to_an_address_is_told() {
    let to = |ip: &str| {
        let dst = addr(ip);
        let bytes = super::octets(&dst).to_vec();
        ask(libc::RTM_GETROUTE, ONE, |to| {
            to.put(&[dst.family as u8, bytes.len() as u8 * 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            to.attribute(libc::RTA_DST, &bytes);
        })
    };
    let way = |ip: &str| {
        let [(kind, 0, body)] = &to(ip)[..] else { panic!("{ip}") };
        assert_eq!(*kind, libc::RTM_NEWROUTE);
        let value = |kind| attribute(&body[RTMSG_LEN..], kind).map(<[u8]>::to_vec);
        let index = u32_at(&value(libc::RTA_OIF).unwrap(), 0).unwrap();
        (index, body[7], value(libc::RTA_GATEWAY), value(libc::RTA_PREFSRC))
    };
    let own = Some(vec![10, 77, 0, 2]);
    assert_eq!(way("192.0.2.1"), (2, libc::RTN_UNICAST, Some(vec![10, 77, 0, 1]), own.clone()));
    assert_eq!(way("10.77.0.9"), (2, libc::RTN_UNICAST, None, own.clone()));
    assert_eq!(way("10.77.0.2"), (2, libc::RTN_LOCAL, None, own));
    assert_eq!(way("127.0.0.9"), (1, libc::RTN_LOCAL, None, Some(vec![127, 0, 0, 9])));
    let (index, _, gateway, source) = way("2001:db8::1");
    assert_eq!(
        (index, gateway.unwrap()[15], source.unwrap()[..2].to_vec()),
        (2, 1, vec![0xfe, 0x80])
    );
}

#[test]
fn the_stack_can_be_looked_at_but_not_changed() {
    for kind in [libc::RTM_NEWADDR, libc::RTM_DELLINK, libc::RTM_SETLINK, libc::RTM_NEWROUTE] {
        assert_eq!(error(&ask(kind, ONE, |to| to.put(&[0; 16]))), libc::EPERM, "{kind}");
    }
    for kind in [libc::RTM_GETNETCONF, libc::RTM_GETQDISC] {
        assert_eq!(error(&ask(kind, DUMP, |to| to.put(&[0; 16]))), libc::EOPNOTSUPP, "{kind}");
    }
    // With NLM_F_ACK, the answer ends with an acknowledgement.
    let flags = ONE | libc::NLM_F_ACK as u16;
    let all = ask(libc::RTM_GETLINK, flags, |to| {
        to.put(&[0; 4]);
        to.put(&1u32.to_ne_bytes());
        to.put(&[0; 8]);
    });
    assert_eq!((all.len(), all[0].0), (2, libc::RTM_NEWLINK));
    assert_eq!(error(&all[1..]), 0);
}

#[test]
fn links_tell_their_traffic() {
    let all = dump(libc::RTM_GETLINK, |_| {});
    let wide = attribute(&all[1][IFINFO_LEN..], libc::IFLA_STATS64).unwrap();
    let number = |at: usize| u64::from_ne_bytes(wide[8 * at..][..8].try_into().unwrap());
    // Packets, bytes, errors and drops; of each counter first received, then sent.
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(number), [3, 0, 5 << 32, 0, 0, 0, 0, 7]);
    let narrow = attribute(&all[1][IFINFO_LEN..], libc::IFLA_STATS).unwrap();
    assert_eq!((u32_at(narrow, 0), u32_at(narrow, 8), narrow.len()), (Some(3), Some(0), 96));
}

#[test]
fn neighbours_are_those_of_the_family_asked_for() {
    let of = |family: i32| {
        dump(libc::RTM_GETNEIGH, |to| {
            to.put(&[family as u8]);
            to.put(&[0; NDMSG_LEN - 1]);
        })
    };
    assert_eq!(of(libc::AF_UNSPEC).len(), 3);
    let v4 = of(libc::AF_INET);
    let told = |body: &[u8], kind| attribute(&body[NDMSG_LEN..], kind).map(<[u8]>::to_vec);
    assert_eq!(told(&v4[0], libc::NDA_DST), Some(vec![10, 77, 0, 1]));
    assert_eq!(told(&v4[0], libc::NDA_LLADDR), Some(vec![2, 0, 0, 0, 0, 9]));
    assert_eq!((u16_at(&v4[1], 8), told(&v4[1], libc::NDA_LLADDR)), (Some(1), None));
    let v6 = of(libc::AF_INET6);
    assert_eq!((v6.len(), v6[0][10]), (1, 0x80));
}

#[test]
fn one_neighbour_is_told_by_interface_and_address() {
    let of = |index: u32, dst: &[u8]| {
        ask(libc::RTM_GETNEIGH, ONE, |to| {
            let family = if dst.len() == 4 { libc::AF_INET } else { libc::AF_INET6 };
            to.put(&[family as u8, 0, 0, 0]);
            to.put(&index.to_ne_bytes());
            to.put(&[0; 4]);
            to.attribute(libc::NDA_DST, dst);
        })
    };
    let all = of(2, &[10, 77, 0, 1]);
    let [(libc::RTM_NEWNEIGH, 0, body)] = &all[..] else { panic!("{all:?}") };
    assert_eq!(attribute(&body[NDMSG_LEN..], libc::NDA_DST), Some(&[10, 77, 0, 1][..]));
    assert_eq!(attribute(&body[NDMSG_LEN..], libc::NDA_LLADDR), Some(&[2, 0, 0, 0, 0, 9][..]));
    assert_eq!(error(&of(1, &[10, 77, 0, 1])), libc::ENOENT);
    assert_eq!(error(&of(2, &[10, 77, 0, 9])), libc::ENOENT);
    assert_eq!(error(&of(3, &[10, 77, 0, 1])), libc::ENODEV);
    let mut sixth = [0; 16];
    (sixth[0], sixth[3], sixth[15]) = (0xfd, 0x77, 1);
    assert_eq!(of(2, &sixth)[0].0, libc::RTM_NEWNEIGH);
}

/// As on Linux, the interface in the request has an effect only with NETLINK_GET_STRICT_CHK.
#[test]
fn addresses_are_those_of_an_interface_if_checks_are_strict() {
    let of = |index: u32, is_strict: bool| {
        let all = ask_checked(libc::RTM_GETADDR, DUMP, is_strict, |to| {
            to.put(&[0; 4]);
            to.put(&index.to_ne_bytes());
        });
        let (end, addresses) = all.split_last().unwrap();
        assert_eq!(i32::from(end.0), libc::NLMSG_DONE);
        (addresses.len(), u32_at(&end.2, 0).unwrap().cast_signed())
    };
    assert_eq!([of(0, false), of(2, false), of(7, false)], [(5, 0); 3]);
    assert_eq!([of(0, true), of(1, true), of(2, true)], [(5, 0), (2, 0), (3, 0)]);
    assert_eq!(of(7, true), (0, -libc::ENODEV));
}

#[test]
fn rules_are_those_of_a_kernel_without_any() {
    let of = |family: i32| {
        dump(libc::RTM_GETRULE, |to| {
            to.put(&[family as u8]);
            to.put(&[0; RTMSG_LEN - 1]);
        })
    };
    let tables = |family| of(family).iter().map(|body| body[4]).collect::<Vec<_>>();
    assert_eq!(tables(libc::AF_INET), [255, 254, 253]);
    assert_eq!(tables(libc::AF_INET6), [255, 254]);
    assert_eq!(of(libc::AF_UNSPEC).len(), 5);
}

/// Malformed requests must not cause a panic.
#[test]
fn odd_requests_do_no_harm() {
    for kind in 0..120 {
        for len in [0, 1, 3, 4, 8, 12, 16, 40] {
            for byte in [0, 1, 0x7f, 0xff] {
                for flags in [0, ONE, DUMP, 0xffff] {
                    ask(kind, flags, |to| to.put(&vec![byte; len]));
                }
            }
        }
    }
}
