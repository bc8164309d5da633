//! Paths of the hostname and the hosts file in PROGRAM's own namespaces.

pub const PATH: &str = "/etc/hosts";
pub const FILE_OF_NAME: &str = "/etc/hostname";

/// Returns the remark for the user in case /etc/hosts does not exist.
pub fn missing() -> String {
    format!("{PATH} is missing: programs do not know the names of --add-host")
}
