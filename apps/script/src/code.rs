//! Evaluates assertions, which are written in a subset of Python's expressions and statements.

use std::collections::BTreeMap;

use towpath_stack::{SocketInfo, SocketState};
use towpath_tcp::State;

use crate::syntax::symbols;

/// Variables in the code of a script, which persist between the blocks of code.
pub type Variables = BTreeMap<String, f64>;

/// Runs a block of code.
///
/// # Errors
/// Returns the failed assertion with the values of its names, or the unsupported statement.
pub fn run(code: &str, variables: &mut Variables) -> Result<(), String> {
    let joined = code.replace("\\\n", " ");
    for line in joined.lines() {
        // Remove comments. Assertions do not contain a `#` inside a string.
        let line = line.split('#').next().unwrap_or("");
        for statement in line.split(';') {
            run_statement(statement.trim(), variables)?;
        }
    }
    Ok(())
}

fn run_statement(statement: &str, variables: &mut Variables) -> Result<(), String> {
    if statement.is_empty() || statement.starts_with("print") {
        return Ok(());
    }
    if let Some(text) = statement.strip_prefix("assert") {
        let text = text.split_once(',').map_or(text, |(condition, _)| condition).trim();
        let value = evaluate(text, variables)?;
        if value != 0.0 {
            return Ok(());
        }
        let is_named = |name: &&String| names_of(text).any(|word| word == name.as_str());
        let values = variables.keys().filter(is_named).map(|name| {
            format!("; {name} is {}", variables.get(name).copied().unwrap_or_default())
        });
        return Err(format!("assert {text} is false{}", values.collect::<String>()));
    }
    if let Some((name, text)) = statement.split_once("+=") {
        let value = evaluate(text, variables)? + evaluate(name, variables)?;
        variables.insert(name.trim().to_owned(), value);
        return Ok(());
    }
    match statement.split_once('=') {
        Some((name, text)) if names_of(name).eq([name.trim()]) => {
            let value = evaluate(text, variables)?;
            variables.insert(name.trim().to_owned(), value);
            Ok(())
        }
        _ => Err(format!("statement '{statement}' is not supported")),
    }
}

fn names_of(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with(|letter: char| letter.is_alphabetic()))
}

fn evaluate(text: &str, variables: &Variables) -> Result<f64, String> {
    let mut parser = ExpressionReader { rest: text, variables, depth: 0 };
    let value = parser.binary(0)?;
    if parser.rest.trim().is_empty() {
        Ok(value)
    } else {
        Err(format!("'{}' is not understood in '{}'", parser.rest.trim(), text.trim()))
    }
}

/// Binary operators by precedence level, starting with the lowest precedence. The first match is
/// used, so longer operators come first.
const LEVELS: &[&[&str]] = &[
    &["or"],
    &["and"],
    &["==", "!=", "<=", ">=", "<", ">"],
    &["|"],
    &["&"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "//", "/", "%"],
];

/// Maximum depth of nested operands. Deeper assertions could overflow the stack.
const DEPTH_MAX: usize = 64;

/// Index in [`LEVELS`] of the comparisons, which can form chains.
const COMPARISONS: usize = 2;

struct ExpressionReader<'a> {
    rest: &'a str,
    variables: &'a Variables,
    depth: usize,
}

impl<'a> ExpressionReader<'a> {
    fn binary(&mut self, level: usize) -> Result<f64, String> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut value = self.binary(level + 1)?;
        let mut left = value;
        let mut holds = true;
        let mut compared = false;
        while let Some(operator) = self.eat_any(operators, level) {
            let right = self.binary(level + 1)?;
            if level == COMPARISONS {
                compared = true;
                holds &= apply(operator, left, right) != 0.0;
                left = right;
            } else {
                value = apply(operator, value, right);
            }
        }
        Ok(if compared { f64::from(u8::from(holds)) } else { value })
    }

    fn unary(&mut self) -> Result<f64, String> {
        if self.depth == DEPTH_MAX {
            return Err("an assertion is nested too deep".to_owned());
        }
        self.depth += 1;
        let value = self.operand();
        self.depth -= 1;
        value
    }

    fn operand(&mut self) -> Result<f64, String> {
        self.rest = self.rest.trim_start();
        if let Some(rest) = self.rest.strip_prefix("not ") {
            self.rest = rest;
            return Ok(f64::from(u8::from(self.binary(COMPARISONS)? == 0.0)));
        }
        if let Some(rest) = self.rest.strip_prefix('-') {
            self.rest = rest;
            return Ok(-self.unary()?);
        }
        if let Some(rest) = self.rest.strip_prefix('(') {
            self.rest = rest;
            let value = self.binary(0)?;
            let rest = self.rest.trim_start().strip_prefix(')');
            self.rest = rest.ok_or("a parenthesis is not closed")?;
            return Ok(value);
        }
        self.atom()
    }

    fn atom(&mut self) -> Result<f64, String> {
        let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '.';
        let end = self.rest.find(|letter| !is_part(letter)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        if let Some(hex) = word.strip_prefix("0x") {
            return i64::from_str_radix(hex, 16)
                .map(|n| n as f64)
                .map_err(|_| format!("'{word}' is not a number"));
        }
        if word.starts_with(|letter: char| letter.is_ascii_digit() || letter == '.') {
            return word.parse().map_err(|_| format!("'{word}' is not a number"));
        }
        let constant = || match word {
            "True" => Some(1.0),
            "False" => Some(0.0),
            _ => symbols::value(word).map(|n| n as f64),
        };
        self.variables
            .get(word)
            .copied()
            .or_else(constant)
            .ok_or_else(|| format!("unknown name '{word}' in an assertion"))
    }

    fn eat_any(&mut self, operators: &[&'static str], level: usize) -> Option<&'static str> {
        let rest = self.rest.trim_start();
        let is_here = |operator: &&&'static str| {
            let after = rest.strip_prefix(**operator).unwrap_or("");
            let is_word = operator.starts_with(char::is_alphabetic);
            let shift = level == COMPARISONS && after.starts_with(['<', '>']);
            rest.starts_with(**operator)
                && !shift
                && (!is_word || !after.starts_with(char::is_alphanumeric))
        };
        let operator = operators.iter().find(is_here)?;
        self.rest = &rest[operator.len()..];
        Some(operator)
    }
}

fn apply(operator: &str, left: f64, right: f64) -> f64 {
    let truth = |holds: bool| f64::from(u8::from(holds));
    let (a, b) = (left as i64, right as i64);
    match operator {
        "or" => {
            if left != 0.0 {
                left
            } else {
                right
            }
        }
        "and" => {
            if left == 0.0 {
                left
            } else {
                right
            }
        }
        "==" => truth(left == right),
        "!=" => truth(left != right),
        "<=" => truth(left <= right),
        ">=" => truth(left >= right),
        "<" => truth(left < right),
        ">" => truth(left > right),
        "|" => (a | b) as f64,
        "&" => (a & b) as f64,
        "<<" => a.wrapping_shl(b as u32) as f64,
        ">>" => a.wrapping_shr(b as u32) as f64,
        "+" => left + right,
        "-" => left - right,
        "*" => left * right,
        "//" => (left / right).floor(),
        "%" => left.rem_euclid(right),
        _ => left / right,
    }
}

/// Sets the variables `tcpi_…` from the state of a socket, in the units of Linux's `struct
/// tcp_info`.
pub fn set_info(variables: &mut Variables, info: Option<&SocketInfo>) {
    let mut set = |name: &str, value: f64| {
        variables.insert(format!("tcpi_{name}"), value);
    };
    let state = match info.map(|info| info.state) {
        Some(SocketState::Tcp(state)) => state_number(state),
        Some(SocketState::Listening) => symbols::TCP_LISTEN,
        Some(SocketState::SynReceived) => symbols::TCP_SYN_RECV,
        _ => symbols::TCP_CLOSE,
    };
    set("state", state as f64);
    let Some(tcp) = info.and_then(|info| info.tcp) else {
        set("options", 0.0);
        return;
    };
    let flag = |is_set: bool, bit: i64| if is_set { bit } else { 0 };
    let options = flag(tcp.timestamps, symbols::TCPI_OPT_TIMESTAMPS)
        | flag(tcp.sack, symbols::TCPI_OPT_SACK)
        | flag(tcp.window_scaling, symbols::TCPI_OPT_WSCALE)
        | flag(tcp.ecn.is_negotiated, symbols::TCPI_OPT_ECN)
        | flag(tcp.ecn.is_seen, symbols::TCPI_OPT_ECN_SEEN)
        | flag(tcp.fast_open.data_acked, symbols::TCPI_OPT_SYN_DATA);
    let micros = |time: std::time::Duration| time.as_micros() as f64;
    let millis = |time: Option<std::time::Duration>| time.map_or(0.0, |t| t.as_millis() as f64);
    let numbers: &[(&str, f64)] = &[
        ("options", options as f64),
        ("ca_state", tcp.ca_state.into()),
        ("retransmits", tcp.retransmits.into()),
        ("probes", tcp.probes.into()),
        ("backoff", tcp.backoff.into()),
        ("snd_wscale", tcp.snd_wscale.into()),
        ("rcv_wscale", tcp.rcv_wscale.into()),
        ("rto", micros(tcp.rto)),
        ("ato", micros(tcp.ato)),
        ("rtt", micros(tcp.rtt)),
        ("rttvar", micros(tcp.rttvar)),
        ("min_rtt", micros(tcp.min_rtt)),
        ("snd_mss", tcp.snd_mss.into()),
        ("rcv_mss", tcp.rcv_mss.into()),
        ("advmss", tcp.advmss.into()),
        ("snd_cwnd", tcp.cwnd.into()),
        ("snd_ssthresh", tcp.ssthresh.into()),
        ("unacked", tcp.unacked.into()),
        ("sacked", tcp.sacked.into()),
        ("lost", tcp.lost.into()),
        ("retrans", tcp.retrans.into()),
        ("total_retrans", tcp.total_retrans.into()),
        ("reordering", tcp.reordering.degree.into()),
        ("notsent_bytes", tcp.notsent_bytes.into()),
        ("bytes_acked", tcp.bytes_acked as f64 + f64::from(tcp.control_acked)),
        ("bytes_received", tcp.bytes_received as f64),
        ("bytes_sent", tcp.bytes_sent as f64),
        ("bytes_retrans", tcp.bytes_retrans as f64),
        ("segs_in", tcp.segs_in.into()),
        ("segs_out", tcp.segs_out.into()),
        ("data_segs_in", tcp.data_segs_in.into()),
        ("data_segs_out", tcp.data_segs_out.into()),
        ("delivered", tcp.delivered.into()),
        ("delivered_ce", tcp.ecn.delivered_ce.into()),
        ("rcv_ooopack", tcp.rcv_ooopack.into()),
        ("delivery_rate", tcp.delivery_rate as f64),
        ("delivery_rate_app_limited", f64::from(u8::from(tcp.delivery_rate_app_limited))),
        ("last_data_sent", millis(tcp.since_data_sent)),
        ("last_data_recv", millis(tcp.since_data_recv)),
        ("last_ack_recv", millis(tcp.since_ack_recv)),
        ("busy_time", micros(tcp.busy_time)),
        ("rwnd_limited", micros(tcp.rwnd_limited)),
        ("sndbuf_limited", micros(tcp.sndbuf_limited)),
    ];
    numbers.iter().for_each(|(name, value)| set(name, *value));
}

fn state_number(state: State) -> i64 {
    match state {
        State::SynSent => symbols::TCP_SYN_SENT,
        State::SynReceived => symbols::TCP_SYN_RECV,
        State::Established => symbols::TCP_ESTABLISHED,
        State::FinWait1 => symbols::TCP_FIN_WAIT1,
        State::FinWait2 => symbols::TCP_FIN_WAIT2,
        State::CloseWait => symbols::TCP_CLOSE_WAIT,
        State::Closing => symbols::TCP_CLOSING,
        State::LastAck => symbols::TCP_LAST_ACK,
        State::TimeWait => symbols::TCP_TIME_WAIT,
        State::Closed => symbols::TCP_CLOSE,
    }
}
