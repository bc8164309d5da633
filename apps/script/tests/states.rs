//! Events in each state of RFC 9293 §3.10.7, for both IP versions and for numbers that wrap.

/// Script composed of a state and an event.
pub struct StateScript {
    /// Name as in the list of known failures.
    pub name: String,
    /// Text of the script.
    pub text: String,
}

/// State with the calls and packets that lead to it.
struct StateRow {
    name: &'static str,
    lead: &'static [&'static str],
    /// SND.NXT and RCV.NXT, relative to the initial numbers.
    snd_nxt: i64,
    rcv_nxt: i64,
}

const LISTEN: &str = "\
+0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 setsockopt(3, SOL_SOCKET, SO_REUSEADDR, [1], 4) = 0
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
";
const SYN_SENT: &str = "\
+0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)
+0 > S 0:0(0) <...>
";
const SYN_RECEIVED: &str = "\
+0 < S 0:0(0) win 65535 <mss 1460>
+0 > S. 0:0(0) ack 1 <...>
";
const ESTABLISHED: &str = "\
+0 < . 1:1(0) ack 1 win 65535
+0 accept(3, ..., ...) = 4
";
const FIN_WAIT_1: &str = "+0 shutdown(4, SHUT_WR) = 0\n+0 > F. 1:1(0) ack 1\n";
const FIN_WAIT_2: &str = "+0 < . 1:1(0) ack 2 win 65535\n";
const CLOSE_WAIT: &str = "+0 < F. 1:1(0) ack 1 win 65535\n+0 > . 1:1(0) ack 2\n";
const LAST_ACK: &str = "+0 close(4) = 0\n+0 > F. 1:1(0) ack 2\n";
const CLOSING: &str = "+0 < F. 1:1(0) ack 1 win 65535\n+0 > . 2:2(0) ack 2\n";
const TIME_WAIT: &str = "+0 < F. 1:1(0) ack 2 win 65535\n+0 > . 2:2(0) ack 2\n";

const OPEN: &[&str] = &[LISTEN, SYN_RECEIVED, ESTABLISHED];

/// States in which both sides know each other's numbers, with the steps behind ESTABLISHED.
const SYNCHRONIZED: &[StateRow] = &[
    StateRow { name: "established", lead: &[], snd_nxt: 1, rcv_nxt: 1 },
    StateRow { name: "fin-wait-1", lead: &[FIN_WAIT_1], snd_nxt: 2, rcv_nxt: 1 },
    StateRow { name: "fin-wait-2", lead: &[FIN_WAIT_1, FIN_WAIT_2], snd_nxt: 2, rcv_nxt: 1 },
    StateRow { name: "close-wait", lead: &[CLOSE_WAIT], snd_nxt: 1, rcv_nxt: 2 },
    StateRow { name: "closing", lead: &[FIN_WAIT_1, CLOSING], snd_nxt: 2, rcv_nxt: 2 },
    StateRow { name: "last-ack", lead: &[CLOSE_WAIT, LAST_ACK], snd_nxt: 2, rcv_nxt: 2 },
    StateRow {
        name: "time-wait",
        lead: &[FIN_WAIT_1, FIN_WAIT_2, TIME_WAIT],
        snd_nxt: 2,
        rcv_nxt: 2,
    },
];

/// Event with the answer. `{s}` and `{r}` are SND.NXT and RCV.NXT, `{r+1}` is one more.
struct EventRow {
    name: &'static str,
    text: &'static str,
    /// States for which the RFC asks for another answer, or for none.
    except: &'static [&'static str],
}

/// Receiving segments in synchronized states.
const EVENTS: &[EventRow] = &[
    // RFC 9293 §3.10.7.4, second: a RST at RCV.NXT resets, and a later segment finds nothing.
    EventRow {
        name: "rst",
        text: "\
            +0 < R {r}:{r}(0) win 0\n\
            +0.01 < . {r}:{r}(0) ack {s} win 65535\n\
            +0 > R {s}:{s}(0)\n",
        except: &["time-wait"],
    },
    // RFC 5961 §3.2: a RST elsewhere in the window is answered by a challenge ACK.
    EventRow {
        name: "rst-in-window",
        text: "+0 < R {r+1}:{r+1}(0) win 0\n+0 > . {s}:{s}(0) ack {r}\n",
        except: &["time-wait"],
    },
    EventRow { name: "rst-outside", text: "+0 < R {r+99999}:{r+99999}(0) win 0\n", except: &[] },
    // RFC 5961 §4.2: a SYN is answered by a challenge ACK, whatever its number.
    EventRow {
        name: "syn-in-window",
        text: "+0 < S {r+9}:{r+9}(0) win 65535\n+0 > . {s}:{s}(0) ack {r}\n",
        except: &["time-wait"],
    },
    EventRow {
        name: "syn-ack",
        text: "+0 < S. {r+9}:{r+9}(0) ack {s} win 65535\n+0 > . {s}:{s}(0) ack {r}\n",
        except: &["time-wait"],
    },
    // §3.10.7.4, first: an unacceptable segment is answered by an ACK.
    EventRow {
        name: "old-segment",
        text: "+0 < . {r-1}:{r-1}(0) ack {s} win 65535\n+0 > . {s}:{s}(0) ack {r}\n",
        except: &[],
    },
    EventRow {
        name: "data-outside",
        text: "+0 < . {r+99999}:{r+100000}(1) ack {s} win 65535\n+0 > . {s}:{s}(0) ack {r}\n",
        except: &[],
    },
    EventRow {
        name: "fin-outside",
        text: "+0 < F. {r+99999}:{r+99999}(0) ack {s} win 65535\n+0 > . {s}:{s}(0) ack {r}\n",
        except: &[],
    },
    // Fifth: a segment without ACK is dropped.
    EventRow { name: "no-ack-bit", text: "+0 < - {r}:{r}(0) win 65535\n", except: &[] },
    EventRow { name: "data-without-ack", text: "+0 < P {r}:{r+9}(9) win 65535\n", except: &[] },
    // Fifth: an ACK of bytes not sent is answered by an ACK.
    EventRow {
        name: "ack-of-future",
        text: "+0 < . {r}:{r}(0) ack {s+9999} win 65535\n+0 > . {s}:{s}(0) ack {r}\n",
        except: &["last-ack", "time-wait"],
    },
    EventRow {
        name: "duplicate-ack",
        text: "+0 < . {r}:{r}(0) ack {s} win 65535\n",
        except: &["time-wait"],
    },
    // Seventh and eighth: text and FIN are acknowledged.
    EventRow {
        name: "data",
        text: "+0 < P. {r}:{r+9}(9) ack {s} win 65535\n+0~+0.5 > . {s}:{s}(0) ack {r+9}\n",
        except: &["close-wait", "closing", "last-ack", "time-wait"],
    },
    EventRow {
        name: "data-behind-gap",
        text: "+0 < P. {r+9}:{r+19}(10) ack {s} win 65535\n+0 > . {s}:{s}(0) ack {r}\n",
        except: &["close-wait", "closing", "last-ack", "time-wait"],
    },
    EventRow {
        name: "fin",
        text: "+0 < F. {r}:{r}(0) ack {s} win 65535\n+0 > . {s}:{s}(0) ack {r+1}\n",
        except: &["close-wait", "closing", "last-ack", "time-wait"],
    },
    EventRow {
        name: "data-and-fin",
        text: "+0 < FP. {r}:{r+9}(9) ack {s} win 65535\n+0 > . {s}:{s}(0) ack {r+10}\n",
        except: &["close-wait", "closing", "last-ack", "time-wait"],
    },
    EventRow {
        name: "fin-behind-gap",
        text: "+0 < F. {r+9}:{r+9}(0) ack {s} win 65535\n+0 > . {s}:{s}(0) ack {r}\n",
        except: &["close-wait", "closing", "last-ack", "time-wait"],
    },
    // A retransmitted FIN is below the window.
    EventRow {
        name: "fin-again",
        text: "+0 < F. {r-1}:{r-1}(0) ack {s} win 65535\n+0 > . {s}:{s}(0) ack {r}\n",
        except: &["established", "fin-wait-1", "fin-wait-2"],
    },
];

/// State with its lead and its events: names, and texts with the answer.
type EarlyState = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

/// Other states, each with its own events: §3.10.7.1 to §3.10.7.4.
const BEFORE: &[EarlyState] = &[
    (
        "closed",
        &[],
        &[
            ("syn", "+0 < S 0:0(0) win 65535\n+0 > R. 0:0(0) ack 1\n"),
            ("ack", "+0 < . 1:1(0) ack 5 win 65535\n+0 > R 5:5(0)\n"),
            ("syn-ack", "+0 < S. 0:0(0) ack 5 win 65535\n+0 > R 5:5(0)\n"),
            ("fin", "+0 < F 1:1(0) win 65535\n+0 > R. 0:0(0) ack 2\n"),
            ("fin-ack", "+0 < F. 1:1(0) ack 5 win 65535\n+0 > R 5:5(0)\n"),
            ("data", "+0 < P 1:11(10) win 65535\n+0 > R. 0:0(0) ack 11\n"),
            ("rst", "+0 < R 1:1(0) win 0\n"),
            ("rst-ack", "+0 < R. 1:1(0) ack 5 win 0\n"),
        ],
    ),
    (
        "listen",
        &[LISTEN],
        &[
            ("syn", "+0 < S 0:0(0) win 65535 <mss 1460>\n+0 > S. 0:0(0) ack 1 <...>\n"),
            ("ack", "+0 < . 1:1(0) ack 5 win 65535\n+0 > R 5:5(0)\n"),
            ("syn-ack", "+0 < S. 0:0(0) ack 5 win 65535\n+0 > R 5:5(0)\n"),
            ("fin-ack", "+0 < F. 1:1(0) ack 5 win 65535\n+0 > R 5:5(0)\n"),
            ("fin", "+0 < F 1:1(0) win 65535\n"),
            ("no-flags", "+0 < - 1:1(0) win 65535\n"),
            ("rst", "+0 < R 1:1(0) win 0\n"),
            ("rst-ack", "+0 < R. 1:1(0) ack 5 win 0\n"),
        ],
    ),
    (
        "syn-sent",
        &[SYN_SENT],
        &[
            ("syn-ack", "+0 < S. 0:0(0) ack 1 win 65535 <mss 1460>\n+0 > . 1:1(0) ack 1\n"),
            ("syn", "+0 < S 0:0(0) win 65535 <mss 1460>\n+0 > S. 0:0(0) ack 1 <...>\n"),
            ("ack-of-future", "+0 < . 0:0(0) ack 1000 win 65535\n+0 > R 1000:1000(0)\n"),
            ("syn-ack-of-future", "+0 < S. 0:0(0) ack 1000 win 65535\n+0 > R 1000:1000(0)\n"),
            ("ack", "+0 < . 0:0(0) ack 1 win 65535\n"),
            ("fin", "+0 < F 0:0(0) win 65535\n"),
            ("rst", "+0 < R 0:0(0) win 0\n+0 getsockopt(3, SOL_SOCKET, SO_ERROR, [0], [4]) = 0\n"),
            (
                "rst-ack",
                "+0 < R. 0:0(0) ack 1 win 0\n\
                 +0 getsockopt(3, SOL_SOCKET, SO_ERROR, [ECONNREFUSED], [4]) = 0\n",
            ),
            (
                "rst-ack-of-future",
                "+0 < R. 0:0(0) ack 1000 win 0\n\
                 +0 getsockopt(3, SOL_SOCKET, SO_ERROR, [0], [4]) = 0\n",
            ),
        ],
    ),
    (
        "syn-received",
        &[LISTEN, SYN_RECEIVED],
        &[
            ("ack", "+0 < . 1:1(0) ack 1 win 65535\n+0 accept(3, ..., ...) = 4\n"),
            ("rst", "+0 < R 1:1(0) win 0\n+0 < . 1:1(0) ack 1 win 65535\n+0 > R 1:1(0)\n"),
            ("rst-in-window", "+0 < R 2:2(0) win 0\n+0 > . 1:1(0) ack 1\n"),
            ("rst-outside", "+0 < R 99999:99999(0) win 0\n"),
            ("ack-of-future", "+0 < . 1:1(0) ack 1000 win 65535\n+0 > R 1000:1000(0)\n"),
            ("no-flags", "+0 < - 1:1(0) win 65535\n"),
            ("fin", "+0 < F. 1:1(0) ack 1 win 65535\n+0 > . 1:1(0) ack 2\n"),
            ("data-outside", "+0 < . 99999:99999(0) ack 1 win 65535\n+0 > . 1:1(0) ack 1\n"),
        ],
    ),
];

/// Option lines of the variants.
const VARIANTS: &[(&str, &str)] = &[
    ("v4", ""),
    ("v6", "--ip_version=ipv6\n"),
    ("wrap", "--local_isn=4294967295\n--remote_isn=4294967295\n"),
];

/// Time in which nothing more may be sent. Shorter than a retransmission timeout.
const QUIET: &str = "+0.1 %{ assert True }%\n";

/// Returns all combinations.
pub fn all() -> Vec<StateScript> {
    let mut scripts = Vec::new();
    for (variant, options) in VARIANTS {
        for (state, lead, events) in BEFORE {
            for (event, text) in *events {
                scripts.push(StateScript {
                    name: format!("states/{state}/{event}-{variant}"),
                    text: format!("{options}{}{text}{QUIET}", lead.concat()),
                });
            }
        }
        for state in SYNCHRONIZED {
            for event in EVENTS.iter().filter(|event| !event.except.contains(&state.name)) {
                let text = numbered(event.text, state);
                scripts.push(StateScript {
                    name: format!("states/{}/{}-{variant}", state.name, event.name),
                    text: format!("{options}{}{}{text}{QUIET}", OPEN.concat(), state.lead.concat()),
                });
            }
        }
    }
    scripts
}

/// Replaces `{s}`, `{r}` and sums by numbers.
fn numbered(text: &str, state: &StateRow) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').expect("a brace is closed");
        let (letter, offset) = name.split_at(1);
        let base = if letter == "s" { state.snd_nxt } else { state.rcv_nxt };
        let offset: i64 = if offset.is_empty() { 0 } else { offset.parse().expect("a number") };
        out += before;
        out += &(base + offset).to_string();
        rest = after;
    }
    out + rest
}
