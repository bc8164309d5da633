//! Implements `towpath ip monitor`, which prints changes of links, addresses, routes and neighbors
//! as they happen. The text is that of ip(8). JSON has an object on each line.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::{Map, Value};
use towpath_model::{Error, Net, ReportTopic, Route, RunReport, Subscription, Word};

use super::args::IpArgs;
use super::monitored::Monitored;
use super::{json, no_answer, text};
use crate::output;

/// Prints changes until the run ends, or the reader of standard output does.
pub(super) fn monitor(args: &IpArgs, wanted: &Monitored) -> Result<u8> {
    let client = args.which.client_to_look().map_err(no_answer)?;
    let mut subscription = Subscription::to(&wanted.topics);
    // Routes are shown with the source address and the carrier of their interface. The sample of
    // traffic contains the interfaces as they are at the start.
    subscription.topics.extend([ReportTopic::Links, ReportTopic::Addresses, ReportTopic::Traffic]);
    subscription.period_ms = Subscription::PERIOD_MS_MAX;
    let mut reports = client.subscribe(&subscription).map_err(no_answer)?;
    let none = Net { interfaces: Vec::new(), routes: Vec::new(), neighbors: Vec::new() };
    let mut monitor = Monitor { args, wanted, net: none };
    loop {
        let report = match reports.wait() {
            Err(Error::Ended(_)) => return Ok(0),
            report => report.map_err(no_answer)?,
        };
        if !monitor.handle(&report)? {
            return Ok(0);
        }
    }
}

/// Formats reports.
struct Monitor<'a> {
    args: &'a IpArgs,
    wanted: &'a Monitored,
    /// Current interfaces with their addresses. Routes and neighbors are not stored.
    net: Net,
}

impl Monitor<'_> {
    /// Prints a report. Returns false if no process reads standard output any more.
    fn handle(&mut self, report: &RunReport) -> Result<bool> {
        // An address that was deleted is still part of a deleted route's description.
        if report.deleted {
            let is_read = self.print(report)?;
            self.follow(report);
            return Ok(is_read);
        }
        self.follow(report);
        self.print(report)
    }

    fn print(&self, report: &RunReport) -> Result<bool> {
        if let Some(lost) = report.lost {
            return match self.args.json {
                true => output::stream_json(&format!("{{\"lost\":{lost}}}\n")),
                false => {
                    crate::messages::error(&format!(
                        "{lost} changes are missing here: they were not read in time"
                    ));
                    Ok(true)
                }
            };
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        match self.args.json {
            true => match self.json(report, time) {
                Some(object) => output::stream_json(&(serde_json::to_string(&object)? + "\n")),
                None => Ok(true),
            },
            false => match self.text(report, time) {
                Some(text) => output::stream_text(&text),
                None => Ok(true),
            },
        }
    }

    /// Returns the kind of the report's object, if the command prints it.
    fn object(&self, report: &RunReport) -> Option<&'static str> {
        let is_dev = |name: &Word| self.wanted.dev.as_ref().is_none_or(|dev| dev == name.as_str());
        let has = |addr: IpAddr| self.args.family().is_none_or(|family| family.has(addr));
        let wants = |topic| self.wanted.topics.contains(&topic);
        if let Some(link) = &report.link {
            (wants(ReportTopic::Links) && is_dev(&link.name)).then_some("link")
        } else if let Some(own) = &report.address {
            let is_shown = is_dev(&own.dev) && has(own.address.address.addr());
            (wants(ReportTopic::Addresses) && is_shown).then_some("address")
        } else if let Some(hops) = &report.route {
            let is_on = |hop: &Route| hop.dev.as_ref().is_some_and(is_dev);
            let is_on_dev = self.wanted.dev.is_none() || hops.iter().any(is_on);
            let first = hops.first().filter(|hop| has(hop.to.addr()))?;
            let is_shown = !text::is_of_loopback(first, &self.net) && is_on_dev;
            is_shown.then_some("route")
        } else if let Some(known) = &report.neighbor {
            (is_dev(&known.dev) && has(known.address)).then_some("neighbor")
        } else {
            None
        }
    }

    fn text(&self, report: &RunReport, time: Duration) -> Option<String> {
        let object = self.object(report)?;
        let mut out = String::new();
        if self.args.timestamp {
            // Ignore the result here and below: writing to a String cannot fail.
            let _ = write!(out, "[{}] ", iso8601(time));
        }
        if self.wanted.labels {
            out.push_str(match object {
                "link" => "[LINK]",
                "address" => "[ADDR]",
                "route" => "[ROUTE]",
                _ => "[NEIGH]",
            });
        }
        if report.deleted {
            out.push_str("Deleted ");
        }
        let start = out.len();
        if let Some(link) = &report.link {
            text::changed_link(&mut out, link);
        } else if let Some(own) = &report.address {
            let _ = write!(out, "{}: {}", own.index, own.dev);
            text::put_address(&mut out, &own.dev, &own.address);
        } else if let Some(hops) = &report.route {
            let hops: Vec<_> = hops.iter().collect();
            text::route(&mut out, &hops, &text::ALL_ROUTES, &self.net);
        } else if let Some(known) = &report.neighbor {
            text::neighbor(&mut out, known, &text::ALL_NEIGHBORS);
        }
        if self.args.oneline {
            let joined = out[start..].trim_end_matches('\n').replace('\n', "\\");
            out.truncate(start);
            out.push_str(&joined);
            out.push('\n');
        }
        Some(out)
    }

    fn json(&self, report: &RunReport, time: Duration) -> Option<Value> {
        let object = self.object(report)?;
        let mut row = Map::new();
        row.insert("object".to_owned(), object.into());
        if self.args.timestamp {
            row.insert("timestamp".to_owned(), iso8601(time).into());
        }
        if report.deleted {
            row.insert("deleted".to_owned(), true.into());
        }
        let described = if let Some(link) = &report.link {
            json::changed_link(link)
        } else if let Some(own) = &report.address {
            row.insert("index".to_owned(), own.index.into());
            row.insert("dev".to_owned(), own.dev.as_str().into());
            json::full_address(&own.address, &own.dev)
        } else if let Some(hops) = &report.route {
            let hops: Vec<_> = hops.iter().collect();
            json::route(&hops, &text::ALL_ROUTES, &self.net)?
        } else {
            json::changed_neighbor(report.neighbor.as_ref()?)
        };
        if let Value::Object(described) = described {
            row.extend(described);
        }
        Some(row.into())
    }

    /// Updates the interfaces by a report.
    fn follow(&mut self, report: &RunReport) {
        let interfaces = &mut self.net.interfaces;
        if let Some(current) = &report.traffic {
            interfaces.clone_from(current);
        } else if let Some(link) = &report.link {
            interfaces.retain(|known| known.name != link.name);
            if !report.deleted {
                interfaces.push(link.clone());
            }
        } else if let Some(own) = &report.address
            && let Some(interface) = interfaces.iter_mut().find(|known| known.name == own.dev)
        {
            interface.addresses.retain(|known| known.address != own.address.address);
            if !report.deleted {
                interface.addresses.push(own.address.clone());
            }
        }
    }
}

/// Formats a time since 1970 as date and time of UTC with microseconds (ISO 8601).
fn iso8601(time: Duration) -> String {
    let (day, second) = (time.as_secs() / 86_400, time.as_secs() % 86_400);
    let (year, month, day) = date(day);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let micros = time.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Returns year, month and day of the Gregorian calendar for a number of days since 1970.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};
    use towpath_model::{
        Address, AddressState, Interface, InterfaceAddress, Kind, Neighbor, NeighborState, Origin,
        Traffic,
    };

    use super::super::monitored;
    use super::*;

    fn interface() -> Interface {
        Interface {
            index: 2,
            name: Word::known("eth0"),
            kind: Kind::Ethernet,
            mac: "02:00:00:00:00:01".parse().ok(),
            mtu: 1500,
            up: true,
            carrier: None,
            addresses: Vec::new(),
            traffic: Traffic::default(),
        }
    }

    fn address() -> InterfaceAddress {
        let address = Address {
            address: "10.5.0.1/24".parse().unwrap(),
            state: AddressState::Preferred,
            origin: Origin::Static,
            valid_s: None,
            preferred_s: None,
        };
        InterfaceAddress { index: 2, dev: Word::known("eth0"), address }
    }

    /// Returns the reports of an address that is added and deleted with its route.
    fn reports() -> Vec<RunReport> {
        let (to, origin) = ("10.5.0.0/24".parse().unwrap(), Origin::Link);
        let dev = Some(Word::known("eth0"));
        let route = Some(vec![Route { to, origin, dev: dev.clone(), ..Route::default() }]);
        let hop = |via: &str| Route {
            to: "10.9.0.0/16".parse().unwrap(),
            via: via.parse().ok(),
            dev: dev.clone(),
            metric: Some(5),
            ..Route::default()
        };
        let two = Some(vec![hop("10.5.0.2"), hop("10.5.0.3")]);
        let neighbor = Some(Neighbor {
            address: "10.5.0.2".parse().unwrap(),
            dev: Word::known("eth0"),
            mac: "02:00:00:00:00:02".parse().ok(),
            state: NeighborState::Permanent,
            router: false,
        });
        let none = RunReport::default;
        vec![
            RunReport { link: Some(interface()), ..none() },
            RunReport { address: Some(address()), ..none() },
            RunReport { route: route.clone(), ..none() },
            RunReport { route: two, ..none() },
            RunReport { neighbor, ..none() },
            RunReport { route, deleted: true, ..none() },
            RunReport { address: Some(address()), deleted: true, ..none() },
        ]
    }

    fn with<T>(options: &[&str], words: &str, check: impl FnOnce(Monitor<'_>) -> T) -> T {
        let command = IpArgs::augment_args(clap::Command::new("ip"));
        let words_of_line = ["ip"].iter().chain(options).chain(&["monitor"]);
        let matches = command.try_get_matches_from(words_of_line).unwrap();
        let args = IpArgs::from_arg_matches(&matches).unwrap();
        let wanted = monitored::parse(words.split_whitespace()).unwrap();
        let net = Net { interfaces: Vec::new(), routes: Vec::new(), neighbors: Vec::new() };
        check(Monitor { args: &args, wanted: &wanted, net })
    }

    fn texts(options: &[&str], words: &str) -> String {
        with(options, words, |mut monitor| {
            let one = |report: RunReport| {
                let before = report.deleted.then(|| monitor.text(&report, Duration::ZERO));
                monitor.follow(&report);
                before.unwrap_or_else(|| monitor.text(&report, Duration::ZERO))
            };
            reports().into_iter().filter_map(one).collect()
        })
    }

    #[test]
    fn the_text_is_that_of_ip_monitor() {
        // A tilde represents the space at the end of many lines of ip(8).
        let wanted = "\
2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 state UP~
    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
2: eth0    inet 10.5.0.1/24 scope global eth0
       valid_lft forever preferred_lft forever
10.5.0.0/24 dev eth0 proto kernel scope link src 10.5.0.1~
10.9.0.0/16 metric 5~
\tnexthop via 10.5.0.2 dev eth0 weight 1~
\tnexthop via 10.5.0.3 dev eth0 weight 1~
10.5.0.2 dev eth0 lladdr 02:00:00:00:00:02 PERMANENT~
Deleted 10.5.0.0/24 dev eth0 proto kernel scope link src 10.5.0.1~
Deleted 2: eth0    inet 10.5.0.1/24 scope global eth0
       valid_lft forever preferred_lft forever
";
        assert_eq!(texts(&[], ""), wanted.replace('~', " "));
        assert_eq!(texts(&[], "dev lo"), "");
        let labelled = texts(&["-t", "-o"], "all dev eth0");
        let lines: Vec<_> = labelled.lines().collect();
        assert_eq!(lines.len(), 7, "{labelled}");
        assert!(lines[0].starts_with("[1970-01-01T00:00:00.000000Z] [LINK]2: eth0: <"));
        assert!(lines[5].starts_with("[1970-01-01T00:00:00.000000Z] [ROUTE]Deleted 10.5.0.0/24"));
        assert_eq!(texts(&["-6"], "route"), "");
    }

    #[test]
    fn json_has_one_object_for_each_change() {
        let objects = with(&["-j"], "", |mut monitor| {
            let one = |report: RunReport| {
                monitor.follow(&report);
                monitor.json(&report, Duration::ZERO).unwrap()
            };
            reports().into_iter().map(one).collect::<Vec<_>>()
        });
        let key = |n: usize, key: &str| objects[n][key].clone();
        assert_eq!((key(0, "object"), key(0, "ifname")), ("link".into(), "eth0".into()));
        assert_eq!((key(1, "dev"), key(1, "local")), ("eth0".into(), "10.5.0.1".into()));
        assert_eq!((key(2, "dst"), key(2, "prefsrc")), ("10.5.0.0/24".into(), "10.5.0.1".into()));
        assert_eq!(key(3, "nexthops").as_array().map(Vec::len), Some(2));
        assert_eq!((key(4, "object"), key(4, "deleted")), ("neighbor".into(), Value::Null));
        assert_eq!((key(6, "object"), key(6, "deleted")), ("address".into(), true.into()));
    }

    #[test]
    fn dates_follow_the_gregorian_calendar() {
        let at = |seconds| iso8601(Duration::new(seconds, 7000));
        assert_eq!(at(0), "1970-01-01T00:00:00.000007Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000007Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59.000007Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000007Z");
    }
}
