//! Aliases of host names, from the file that the variable HOSTALIASES names (hostname(7)).

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;

use crate::resolver;

/// Maximum length in bytes of the HOSTALIASES file; a longer file is ignored.
const FILE_MAX: usize = 64 << 10;

/// Returns the alias of `name` from the HOSTALIASES file. The resolver must look up the alias
/// without search domains.
pub fn of(name: &[u8]) -> Option<Vec<u8>> {
    let path = CString::new(std::env::var_os("HOSTALIASES")?.into_vec()).ok()?;
    let mut file = vec![0; FILE_MAX];
    let len = resolver::read(&path, &mut file).ok()??;
    find(&file[..len], name)
}

/// Returns the alias in the first line that begins with `name`. As in glibc, only this line counts,
/// even if it has no alias.
fn find(text: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    for line in text.split(|byte| *byte == b'\n') {
        let mut words = line.splitn(2, |byte| byte.is_ascii_whitespace());
        // Compare the name without regard to case, as for all DNS names (RFC 4343).
        let is_it = words.next()?.eq_ignore_ascii_case(name);
        let behind = words.next().map(<[u8]>::trim_ascii_start);
        if is_it {
            let alias = behind?.split(u8::is_ascii_whitespace).next()?;
            return (!alias.is_empty()).then(|| alias.to_vec());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_aliases() {
        let text = b"www web.example\nDB\t  db.example. # x\nalone\nlast last.example";
        let of = |name: &str| find(text, name.as_bytes()).map(|n| String::from_utf8(n).unwrap());
        assert_eq!(of("WWW").as_deref(), Some("web.example"));
        assert_eq!(of("db").as_deref(), Some("db.example."));
        for none in ["alone", "w", "web.example", ""] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
