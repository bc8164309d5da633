//! Default TCP settings of a host, which operators change by name. The commands, the library and
//! the simulator share one table of these settings.

use crate::config::{Config, SynCookies, WINDOW_SCALE_MAX};
use crate::congestion::CongestionKind;
use crate::ecn::EcnMode;
use crate::fast_open::{FastOpenKeys, FastOpenModes};
use core::fmt;
use core::str::FromStr;

/// Default TCP settings for the connections of a host. [`FromStr`] and [`fmt::Display`] use the
/// form `NAME=VALUE,NAME=VALUE`.
///
/// ```
/// use towpath_tcp::{Config, TcpDefaults};
///
/// let mut defaults = TcpDefaults::default();
/// defaults.set("tcp_sack", "0")?;
/// defaults.set("ecn", "on")?;
/// let mut config = Config::default();
/// defaults.apply(&mut config);
/// assert!(!config.sack);
/// # Ok::<(), towpath_tcp::TcpDefaultError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpDefaults {
    /// Congestion control algorithm of connections whose program chooses none.
    pub congestion: CongestionKind,
    /// Whether timestamps are offered and accepted (RFC 7323).
    pub timestamps: bool,
    /// Whether selective acknowledgements are offered and accepted (RFC 2018).
    pub sack: bool,
    /// Whether window scaling is offered and accepted (RFC 7323).
    pub window_scaling: bool,
    /// Whether ECN is requested and accepted (RFC 3168, RFC 9768).
    pub ecn: EcnMode,
    /// Whether clients and listeners use TCP Fast Open (RFC 7413).
    pub fast_open: FastOpenModes,
    /// Keys of Fast Open cookies that listeners give; `None` means a random key.
    pub fast_open_keys: Option<FastOpenKeys>,
    /// When listeners use SYN cookies (RFC 4987).
    pub syn_cookies: SynCookies,
    /// Maximum size of a receive buffer in bytes, which limits the receive window. `None` keeps the
    /// default of the stack.
    pub recv_max: Option<u32>,
}

impl Default for TcpDefaults {
    fn default() -> Self {
        let config = Config::default();
        Self {
            congestion: config.congestion,
            timestamps: config.timestamps,
            sack: config.sack,
            window_scaling: config.scaling,
            ecn: config.ecn,
            fast_open: config.fast_open,
            fast_open_keys: config.fast_open_keys,
            syn_cookies: config.syn_cookies,
            recv_max: None,
        }
    }
}

/// A setting in the table of default TCP settings.
#[derive(Debug, Clone, Copy)]
pub struct TcpDefaultRow {
    /// Name of the setting for users.
    pub name: &'static str,
    /// Name of Linux's sysctl, without the prefix `net.ipv4.`.
    pub sysctl: &'static str,
    /// Description of the setting's effect, for help texts.
    pub help: &'static str,
    /// Returns a description of the valid values.
    pub values: fn() -> String,
    set: fn(&mut TcpDefaults, &str) -> Option<()>,
    show: fn(&TcpDefaults) -> Option<String>,
}

impl TcpDefaultRow {
    /// Returns the row with this name. Names of Linux sysctls are accepted as well.
    ///
    /// # Errors
    /// Returns an error if the name is unknown.
    pub fn find(name: &str) -> Result<&'static Self, TcpDefaultError> {
        let short = name.strip_prefix("net.ipv4.").unwrap_or(name);
        let row = TCP_DEFAULTS.iter().find(|row| row.name == name || row.sysctl == short);
        row.ok_or_else(|| TcpDefaultError::UnknownName(name.into()))
    }

    /// Returns the value of the setting in a form that [`TcpDefaults::set`] accepts. Returns `None`
    /// if the setting has no fixed value, as a random key.
    pub fn value(&self, all: &TcpDefaults) -> Option<String> {
        (self.show)(all)
    }
}

/// Minimum of the setting `rmem-max` in bytes: a page, which is also the minimum of Linux's
/// `tcp_rmem`.
const RECV_MIN: u32 = 4096;
/// Maximum of the setting `rmem-max` in bytes: the largest supported receive buffer.
const RECV_MAX: u32 = 64 << 20;

/// All default TCP settings, in the order of the documentation.
pub const TCP_DEFAULTS: &[TcpDefaultRow] = &[
    TcpDefaultRow {
        name: "congestion",
        sysctl: "tcp_congestion_control",
        help: "congestion control, unless a program chooses another",
        values: || CongestionKind::NAMES.join(", "),
        set: |all, word| CongestionKind::from_word(word).map(|kind| all.congestion = kind),
        show: |all| Some(all.congestion.name().into()),
    },
    TcpDefaultRow {
        name: "timestamps",
        sysctl: "tcp_timestamps",
        help: "timestamps (RFC 7323)",
        values: on_or_off,
        set: |all, word| switch(word).map(|on| all.timestamps = on),
        show: |all| Some(shown(all.timestamps)),
    },
    TcpDefaultRow {
        name: "sack",
        sysctl: "tcp_sack",
        help: "selective acknowledgements (RFC 2018)",
        values: on_or_off,
        set: |all, word| switch(word).map(|on| all.sack = on),
        show: |all| Some(shown(all.sack)),
    },
    TcpDefaultRow {
        name: "window-scaling",
        sysctl: "tcp_window_scaling",
        help: "windows above 64 KiB (RFC 7323)",
        values: on_or_off,
        set: |all, word| switch(word).map(|on| all.window_scaling = on),
        show: |all| Some(shown(all.window_scaling)),
    },
    TcpDefaultRow {
        name: "ecn",
        sysctl: "tcp_ecn",
        help: "Explicit Congestion Notification (RFC 3168); accurate: RFC 9768",
        values: || EcnMode::ALL.iter().map(|mode| mode.name()).collect::<Vec<_>>().join(", "),
        set: |all, word| EcnMode::from_word(word).map(|mode| all.ecn = mode),
        show: |all| Some(all.ecn.name().into()),
    },
    TcpDefaultRow {
        name: "fast-open",
        sysctl: "tcp_fastopen",
        help: "data in SYNs (RFC 7413)",
        values: || "off, on, client, server, or the bits of Linux's tcp_fastopen".into(),
        set: |all, word| FastOpenModes::from_word(word).map(|modes| all.fast_open = modes),
        show: |all| Some(all.fast_open.to_string()),
    },
    TcpDefaultRow {
        name: "fast-open-key",
        sysctl: "tcp_fastopen_key",
        help: "key of the cookies of servers, random unless set (RFC 7413)",
        values: || "four hexadecimal numbers as 1a-2b-3c-4d, with + a second key".into(),
        set: |all, word| FastOpenKeys::from_word(word).map(|keys| all.fast_open_keys = Some(keys)),
        show: |all| all.fast_open_keys.map(|keys| keys.to_string()),
    },
    TcpDefaultRow {
        name: "syn-cookies",
        sysctl: "tcp_syncookies",
        help: "SYN cookies (RFC 4987); on: while a listener is flooded",
        values: || "off, on, always".into(),
        set: |all, word| SynCookies::from_word(word).map(|it| all.syn_cookies = it),
        show: |all| Some(all.syn_cookies.name().into()),
    },
    TcpDefaultRow {
        name: "rmem-max",
        sysctl: "tcp_rmem[2]",
        help: "maximum of a receive buffer in bytes, and so of the window",
        values: || format!("{RECV_MIN} to {RECV_MAX}"),
        set: |all, word| {
            let bytes = word.parse().ok().filter(|bytes| (RECV_MIN..=RECV_MAX).contains(bytes))?;
            all.recv_max = Some(bytes);
            Some(())
        },
        show: |all| all.recv_max.map(|bytes| bytes.to_string()),
    },
];

/// Error in a default TCP setting: an unknown name or an invalid value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TcpDefaultError {
    /// The text is not of the form `NAME=VALUE`.
    NoValue(String),
    /// There is no TCP setting with this name.
    UnknownName(String),
    /// The value is invalid for the setting with this name.
    InvalidValue(&'static str, String),
}

impl fmt::Display for TcpDefaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = || TCP_DEFAULTS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        match self {
            Self::NoValue(text) => write!(f, "\"{text}\" has no value: expected NAME=VALUE"),
            Self::UnknownName(name) => {
                write!(f, "\"{name}\" is not a setting of TCP: expected one of {}", names())
            }
            Self::InvalidValue(name, value) => {
                let row = TCP_DEFAULTS.iter().find(|row| row.name == *name);
                let values = row.map_or_else(String::new, |row| (row.values)());
                write!(f, "\"{value}\" is not a valid value of {name}: expected {values}")
            }
        }
    }
}

impl std::error::Error for TcpDefaultError {}

impl TcpDefaults {
    /// Sets the setting with this name. Names of Linux sysctls are accepted as well.
    ///
    /// # Errors
    /// Returns an error if the name is unknown or the value invalid.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), TcpDefaultError> {
        let row = TcpDefaultRow::find(name)?;
        (row.set)(self, value).ok_or_else(|| TcpDefaultError::InvalidValue(row.name, value.into()))
    }

    /// Sets all settings in a list of the form `NAME=VALUE,NAME=VALUE`.
    ///
    /// # Errors
    /// Returns the errors of [`Self::set`], and an error if an element of the list has no value.
    pub fn set_all(&mut self, list: &str) -> Result<(), TcpDefaultError> {
        for text in list.split(',') {
            let pair = text.split_once('=').ok_or_else(|| TcpDefaultError::NoValue(text.into()));
            let (name, value) = pair?;
            self.set(name.trim(), value.trim())?;
        }
        Ok(())
    }

    /// Returns the settings in a configuration of connections. `recv_max` is the maximum size of a
    /// receive buffer in bytes.
    pub fn of(config: &Config, recv_max: u32) -> Self {
        Self {
            congestion: config.congestion,
            timestamps: config.timestamps,
            sack: config.sack,
            window_scaling: config.scaling,
            ecn: config.ecn,
            fast_open: config.fast_open,
            fast_open_keys: config.fast_open_keys,
            syn_cookies: config.syn_cookies,
            recv_max: Some(recv_max),
        }
    }

    /// Copies the settings to the configuration of a new connection.
    pub fn apply(&self, config: &mut Config) {
        config.congestion = self.congestion;
        config.timestamps = self.timestamps;
        config.sack = self.sack;
        config.scaling = self.window_scaling;
        config.ecn = self.ecn;
        config.fast_open = self.fast_open;
        config.fast_open_keys = self.fast_open_keys;
        config.syn_cookies = self.syn_cookies;
        if let Some(bytes) = self.recv_max {
            let fits = |scale: &u8| u32::from(u16::MAX) << scale >= bytes;
            config.window_scale = (0..=WINDOW_SCALE_MAX).find(fits).unwrap_or(WINDOW_SCALE_MAX);
        }
    }
}

impl FromStr for TcpDefaults {
    type Err = TcpDefaultError;

    fn from_str(text: &str) -> Result<Self, TcpDefaultError> {
        let mut all = Self::default();
        all.set_all(text)?;
        Ok(all)
    }
}

impl fmt::Display for TcpDefaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for row in TCP_DEFAULTS {
            if let Some(value) = (row.show)(self) {
                write!(f, "{comma}{}={value}", row.name)?;
                comma = ",";
            }
        }
        Ok(())
    }
}

fn on_or_off() -> String {
    "on, off".into()
}

fn switch(word: &str) -> Option<bool> {
    match word {
        "on" | "1" => Some(true),
        "off" | "0" => Some(false),
        _ => None,
    }
}

fn shown(on: bool) -> String {
    if on { "on" } else { "off" }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_and_parse_are_inverse() {
        let text = "congestion=reno,timestamps=off,sack=off,window-scaling=off,ecn=accurate,\
                    fast-open=0x5,fast-open-key=00000001-00000002-00000003-00000004,\
                    syn-cookies=always,rmem-max=100000";
        let all: TcpDefaults = text.parse().unwrap();
        assert_eq!(all.to_string(), text);
        let plain = TcpDefaults::default();
        assert_eq!(plain.to_string().parse(), Ok(plain));
        let mut config = Config::default();
        plain.apply(&mut config);
        assert_eq!(config, Config::default());
        all.apply(&mut config);
        assert_eq!((config.timestamps, config.sack, config.scaling), (false, false, false));
        assert_eq!((config.ecn, config.window_scale), (EcnMode::Accurate, 1));
        assert_eq!(TcpDefaults::of(&config, 100_000), all);
    }

    #[test]
    fn names_of_linux_are_known() {
        let mut all = TcpDefaults::default();
        for row in TCP_DEFAULTS {
            let unset = if row.name == "rmem-max" { "65536" } else { "1-2-3-4" };
            let value = (row.show)(&all).unwrap_or_else(|| unset.into());
            assert_eq!(all.set(&format!("net.ipv4.{}", row.sysctl), &value), Ok(()));
        }
        for (word, name) in [("1", "client"), ("0x403", "0x403"), ("3", "on"), ("off", "off")] {
            assert_eq!(all.set("tcp_fastopen", word), Ok(()));
            assert_eq!(all.fast_open.to_string(), name);
        }
        assert_eq!(all.set_all("tcp_ecn=3,tcp_sack=0"), Ok(()));
        assert_eq!((all.ecn, all.sack), (EcnMode::Accurate, false));
    }

    #[test]
    fn errors_name_the_setting_and_its_values() {
        for (text, expected) in [
            ("sak=on", "\"sak\" is not a setting of TCP: expected one of congestion, timestamps"),
            ("sack", "\"sack\" has no value: expected NAME=VALUE"),
            ("sack=maybe", "\"maybe\" is not a valid value of sack: expected on, off"),
            ("ecn=4", "\"4\" is not a valid value of ecn: expected off, on, accept, accurate"),
            ("rmem-max=100", "\"100\" is not a valid value of rmem-max: expected 4096 to 67108864"),
            ("congestion=x", "\"x\" is not a valid value of congestion: expected cubic, reno"),
        ] {
            let error = text.parse::<TcpDefaults>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
