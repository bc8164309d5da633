//! Options of a memif device in the user's notation.

use std::path::PathBuf;
use std::str::FromStr;

use towpath_stream::LinkRole;

use crate::layout::{LOG2_SIZE_MAX, LOG2_SIZE_MIN};
use crate::message::SECRET_LEN;

/// Maximum length of a secret. DPDK and libmemif keep a NUL behind it in the field of the message.
const SECRET_MAX: usize = SECRET_LEN - 1;
/// Minimum length of a buffer in bytes. A frame of 64 KiB then needs 1024 buffers at most.
const BUFFER_MIN: u16 = 64;

/// Options of a memif device: `SOCKET[,id=N][,role=ROLE][,secret=TEXT][,rsize=N][,bsize=N]`.
///
/// Names and defaults are those of DPDK's net_memif, except for the role.
///
/// ```
/// use towpath_memif::MemifOptions;
///
/// let options: MemifOptions = "/run/memif.sock,id=3,role=server".parse()?;
/// assert_eq!((options.id, options.log2_size, options.buffer_len), (3, 10, 2048));
/// assert!("/run/memif.sock,role=boss".parse::<MemifOptions>().is_err());
/// # Ok::<(), towpath_memif::MemifOptionError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemifOptions {
    /// Path of the server's socket.
    pub path: PathBuf,
    /// Number of the interface, which has to be the same on both sides.
    pub id: u32,
    /// Side of the link that this process takes.
    pub role: LinkRole,
    /// Secret that the client has to send, filled with zeros. Zeros alone mean that no secret is
    /// required.
    pub secret: [u8; SECRET_LEN],
    /// Number of descriptors in each ring as a power of two. The client chooses.
    pub log2_size: u8,
    /// Length of a buffer in bytes. The client chooses.
    pub buffer_len: u16,
}

/// Error message about an option in the user's notation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MemifOptionError(String);

impl MemifOptions {
    /// Creates the default options for a socket.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            id: 0,
            role: LinkRole::Either,
            secret: [0; SECRET_LEN],
            log2_size: 10,
            buffer_len: 2048,
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "id" => self.id = number(key, value, 0, u32::MAX)?,
            "role" => {
                self.role = match value {
                    "server" => LinkRole::Listen,
                    "client" => LinkRole::Connect,
                    _ => return Err(format!("role={value}: expected server or client")),
                };
            }
            "secret" => {
                let is_plain = value.bytes().all(|byte| byte.is_ascii_graphic());
                if value.is_empty() || value.len() > SECRET_MAX || !is_plain {
                    return Err(format!(
                        "secret={value}: expected 1 to {SECRET_MAX} letters, digits or signs"
                    ));
                }
                self.secret[..value.len()].copy_from_slice(value.as_bytes());
            }
            "rsize" => {
                self.log2_size =
                    number(key, value, LOG2_SIZE_MIN.into(), LOG2_SIZE_MAX.into())? as u8;
            }
            "bsize" => {
                self.buffer_len = number(key, value, BUFFER_MIN.into(), u16::MAX.into())? as u16;
            }
            _ => {
                return Err(format!("{key}={value}: expected id, role, secret, rsize or bsize"));
            }
        }
        Ok(())
    }
}

fn number(key: &str, value: &str, least: u32, most: u32) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("{key}={value}: expected a number from {least} to {most}"))
}

impl FromStr for MemifOptions {
    type Err = MemifOptionError;

    fn from_str(text: &str) -> Result<Self, MemifOptionError> {
        parse(text).map_err(MemifOptionError)
    }
}

fn parse(text: &str) -> Result<MemifOptions, String> {
    let mut words = text.split(',');
    let path = words.next().filter(|path| !path.is_empty()).ok_or("the socket is missing")?;
    let mut options = MemifOptions::new(path);
    let mut given = Vec::new();
    for word in words {
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?}: expected NAME=VALUE, for example id=1"))?;
        if given.contains(&key) {
            return Err(format!("{key} is given twice"));
        }
        options.set(key, value)?;
        given.push(key);
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_options_are_parsed() {
        let text = "/a/b,id=4294967295,role=client,secret=s3cret!,rsize=14,bsize=65535";
        let options: MemifOptions = text.parse().expect(text);
        assert_eq!(options.path, PathBuf::from("/a/b"));
        assert_eq!((options.id, options.role), (u32::MAX, LinkRole::Connect));
        assert_eq!((&options.secret[..8], options.log2_size), (&b"s3cret!\0"[..], 14));
        assert_eq!(options.buffer_len, u16::MAX);
        assert_eq!("/a/b".parse(), Ok(MemifOptions::new("/a/b")));
    }

    #[test]
    fn wrong_options_are_named() {
        let wrong = [
            ("", "the socket is missing"),
            ("/a,server", "\"server\": expected NAME=VALUE"),
            ("/a,id=-1", "id=-1: expected a number from 0 to 4294967295"),
            ("/a,role=master", "role=master: expected server or client"),
            ("/a,secret=", "expected 1 to 23 letters"),
            ("/a,secret=123456789012345678901234", "expected 1 to 23 letters"),
            ("/a,rsize=0", "expected a number from 1 to 14"),
            ("/a,rsize=15", "expected a number from 1 to 14"),
            ("/a,bsize=63", "expected a number from 64 to 65535"),
            ("/a,id=1,id=2", "id is given twice"),
            ("/a,zero-copy=yes", "zero-copy=yes: expected id, role, secret, rsize or bsize"),
        ];
        for (text, wanted) in wrong {
            let error = text.parse::<MemifOptions>().expect_err(text).to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
