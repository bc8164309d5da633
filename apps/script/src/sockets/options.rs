//! System calls setsockopt(2) and getsockopt(2).

use std::num::NonZeroU8;
use std::num::NonZeroU64;
use std::time::Duration;

use towpath_stack::{KeepAliveConfig, OptionError, SocketOption};
use towpath_tcp::{CongestionKind, State};

use super::{
    CallCx, Outcome, ScriptSocket, SocketStage, Unsupported, arg, arg_int, done, fail, with_outs,
};
use crate::host::SocketSizes;
use crate::syntax::symbols as sys;
use crate::syntax::value::Value;

impl ScriptSocket {
    pub(super) fn setsockopt(&mut self, cx: &mut CallCx<'_>, args: &[Value]) -> Outcome {
        let (level, name) = (arg_int(args, 1)?, arg_int(args, 2)?);
        let argument = arg(args, 3)?;
        if (level, name) == (sys::SOL_TCP, sys::TCP_CONGESTION) {
            return self.set_congestion(cx, argument);
        }
        if (level, name) == (sys::SOL_SOCKET, sys::SO_LINGER) {
            return self.set_linger(argument);
        }
        let Some(value) = argument.int() else {
            return Err(format!("value {argument} of a socket option"));
        };
        let wrong = |error: OptionError| match error {
            OptionError::Invalid => fail("EINVAL"),
            _ => fail("ENOPROTOOPT"),
        };
        match self.stack_option(level, name, value)? {
            Some(option) => {
                let id = self.id(cx.world);
                let set = cx.world.stack.set_option(id, option);
                // Before connect(2), only store the value of TCP_CORK. The option is applied when
                // the connection is created.
                let later = self.stage == SocketStage::Fresh;
                match set {
                    Err(OptionError::NotApplicable) if later => {}
                    Err(error) => return wrong(error),
                    Ok(()) => {}
                }
            }
            None if level == sys::SOL_SOCKET => self.set_size(cx, name, value),
            None => {}
        }
        self.options.insert((level, name), value);
        done(0)
    }

    /// Returns the stack's option for a socket option. `None` if only the socket layer needs the
    /// value.
    fn stack_option(
        &self,
        level: i64,
        name: i64,
        value: i64,
    ) -> Result<Option<SocketOption>, Unsupported> {
        let on = value != 0;
        let number = u8::try_from(value).unwrap_or(u8::MAX);
        let millis = || Duration::from_millis(value.unsigned_abs());
        Ok(Some(match (level, name) {
            (sys::SOL_SOCKET, sys::SO_KEEPALIVE) => {
                SocketOption::KeepAlive(on.then(|| self.keep_alive((0, 0))))
            }
            (sys::SOL_SOCKET, sys::SO_MAX_PACING_RATE) => {
                SocketOption::MaxPacingRate(NonZeroU64::new(value.unsigned_abs()))
            }
            (sys::SOL_TCP, sys::TCP_KEEPIDLE | sys::TCP_KEEPINTVL | sys::TCP_KEEPCNT) => {
                if self.option(sys::SOL_SOCKET, sys::SO_KEEPALIVE) == 0 {
                    return Ok(None);
                }
                SocketOption::KeepAlive(Some(self.keep_alive((name, value))))
            }
            (sys::SOL_TCP, sys::TCP_NODELAY) => SocketOption::NoDelay(on),
            (sys::SOL_TCP, sys::TCP_CORK) => SocketOption::Cork(on),
            (sys::SOL_TCP, sys::TCP_QUICKACK) => SocketOption::QuickAck(on),
            (sys::SOL_TCP, sys::TCP_SYNCNT) => SocketOption::SynRetries(number),
            (sys::SOL_TCP, sys::TCP_USER_TIMEOUT) => SocketOption::UserTimeout(on.then(millis)),
            (sys::SOL_TCP, sys::TCP_LINGER2) => {
                SocketOption::FinWait2(Duration::from_secs(value.unsigned_abs()))
            }
            (sys::SOL_TCP, sys::TCP_MAXSEG) => {
                SocketOption::MaxSegment(u16::try_from(value).unwrap_or(u16::MAX))
            }
            (sys::SOL_TCP, sys::TCP_FASTOPEN) => SocketOption::FastOpenQueue(value as u32),
            (sys::SOL_IP, sys::IP_TTL) => SocketOption::Ttl(NonZeroU8::new(number)),
            (sys::SOL_IP, sys::IP_TOS) => SocketOption::Tos(number),
            (sys::SOL_IP, sys::IP_MINTTL) => SocketOption::MinTtl(number),
            (sys::SOL_IPV6, sys::IPV6_TCLASS) => SocketOption::TrafficClass(number),
            (sys::SOL_IPV6, sys::IPV6_UNICAST_HOPS) => SocketOption::UnicastHops(Some(number)),
            (
                sys::SOL_SOCKET,
                sys::SO_REUSEADDR
                | sys::SO_REUSEPORT
                | sys::SO_SNDBUF
                | sys::SO_RCVBUF
                | sys::SO_ZEROCOPY,
            )
            | (sys::SOL_TCP, sys::TCP_NOTSENT_LOWAT | sys::TCP_INQ | sys::TCP_FASTOPEN_CONNECT)
            | (sys::SOL_IP, sys::IP_FREEBIND)
            | (sys::SOL_IPV6, sys::IPV6_V6ONLY) => return Ok(None),
            _ => return Err(format!("socket option {name} of level {level} is not supported")),
        }))
    }

    /// Returns the keep-alive configuration after one of its values was changed.
    fn keep_alive(&self, changed: (i64, i64)) -> KeepAliveConfig {
        let default = KeepAliveConfig::default();
        let get = |of: i64| match of == changed.0 {
            true => Some(changed.1),
            false => self.options.get(&(sys::SOL_TCP, of)).copied(),
        };
        let seconds =
            |of, default| get(of).map_or(default, |s: i64| Duration::from_secs(s.unsigned_abs()));
        KeepAliveConfig {
            idle: seconds(sys::TCP_KEEPIDLE, default.idle),
            interval: seconds(sys::TCP_KEEPINTVL, default.interval),
            probes: get(sys::TCP_KEEPCNT).map_or(default.probes, |n| n as u8),
        }
    }

    fn set_congestion(&mut self, cx: &mut CallCx<'_>, argument: &Value) -> Outcome {
        let Value::Text(name) = argument else {
            return Err(format!("congestion control {argument}"));
        };
        let Some(kind) = CongestionKind::from_name(name) else { return fail("ENOENT") };
        let id = self.id(cx.world);
        match cx.world.stack.set_option(id, SocketOption::Congestion(kind)) {
            Ok(()) => done(0),
            Err(_) => fail("EINVAL"),
        }
    }

    fn set_linger(&mut self, argument: &Value) -> Outcome {
        let field = |name| argument.field(name).and_then(Value::int);
        match (field("onoff"), field("linger")) {
            (Some(0), _) => {
                self.options.remove(&(sys::SOL_SOCKET, sys::SO_LINGER));
            }
            (Some(_), Some(0)) => {
                self.options.insert((sys::SOL_SOCKET, sys::SO_LINGER), 0);
            }
            _ => return Err(format!("linger {argument}: only a time of 0 is supported")),
        }
        done(0)
    }

    fn set_size(&mut self, cx: &mut CallCx<'_>, name: i64, value: i64) {
        let size = u32::try_from(value).unwrap_or(u32::MAX >> 2);
        match name {
            sys::SO_RCVBUF => {
                self.sizes = SocketSizes { recv: size, recv_max: size, ..self.sizes };
            }
            sys::SO_SNDBUF => {
                self.sizes = SocketSizes { send: size, send_max: size, ..self.sizes };
            }
            _ => return,
        }
        cx.world.host.sockets[self.user as usize].sizes = self.sizes;
    }

    pub(super) fn getsockopt(&mut self, cx: &mut CallCx<'_>, args: &[Value]) -> Outcome {
        let (level, name) = (arg_int(args, 1)?, arg_int(args, 2)?);
        let stored = self.options.get(&(level, name)).copied();
        let value = match (level, name) {
            (sys::SOL_SOCKET, sys::SO_ERROR) => {
                let errno = self.take_error(cx.world);
                errno.and_then(sys::errno).unwrap_or(0)
            }
            // Return twice the size, because Linux doubles it for its own structures (socket(7)).
            (sys::SOL_SOCKET, sys::SO_RCVBUF) => {
                stored.map_or(i64::from(self.sizes.recv), |size| size.saturating_mul(2))
            }
            (sys::SOL_SOCKET, sys::SO_SNDBUF) => {
                stored.map_or(i64::from(self.sizes.send), |size| size.saturating_mul(2))
            }
            (sys::SOL_TCP, sys::TCP_MAXSEG) => {
                let tcp = self.info(cx).and_then(|info| info.tcp);
                match tcp.filter(|tcp| tcp.state != State::Closed) {
                    Some(tcp) => i64::from(tcp.snd_mss),
                    None => stored.filter(|mss| *mss != 0).unwrap_or(536),
                }
            }
            (sys::SOL_TCP, sys::TCP_CONGESTION) => {
                let tcp = self.info(cx).and_then(|info| info.tcp);
                let kind = tcp.map_or(cx.knobs.stack.tcp.congestion, |tcp| tcp.congestion);
                return with_outs(0, vec![(3, Value::Text(kind.name().to_owned()))]);
            }
            _ => {
                self.stack_option(level, name, 0)?;
                stored.unwrap_or(0)
            }
        };
        with_outs(0, vec![(3, Value::Int(value))])
    }
}
