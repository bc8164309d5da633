//! The names that PROGRAM finds in namespaces of its own: that of the machine, and /etc/hosts.

pub const PATH: &str = "/etc/hosts";
pub const FILE_OF_NAME: &str = "/etc/hostname";

/// Remark for the user where there is no /etc/hosts.
pub fn missing() -> String {
    format!("{PATH} is missing: programs do not know the names of --add-host")
}
