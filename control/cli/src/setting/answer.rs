//! Answers requests about TCP settings, in the process that has the stack.

use towpath_config::unknown;
use towpath_engine::Gone;
use towpath_model::{RequestFault, TcpSetting, TcpSettingChange, Word};
use towpath_tcp::{TCP_DEFAULTS, TcpDefaultError, TcpDefaultRow, TcpDefaults};

use crate::served::{ServedStack, gone};

/// Returns the TCP settings of a stack, in the order of the documentation.
///
/// # Errors
/// Fails if the stack has ended.
pub fn shown(stack: &ServedStack) -> Result<Vec<TcpSetting>, Gone> {
    let defaults = stack.remote.tcp_defaults()?;
    let setting = |row: &TcpDefaultRow| TcpSetting {
        name: Word::known(row.name),
        sysctl: Word::known(row.sysctl),
        value: row.value(&defaults),
        values: (row.values)(),
        help: row.help.to_owned(),
    };
    Ok(TCP_DEFAULTS.iter().map(setting).collect())
}

/// Changes TCP settings of a stack, and returns the number of changes.
///
/// # Errors
/// Fails if a change is invalid, or the stack has ended. No setting was changed then.
pub fn change(stack: &ServedStack, changes: &[TcpSettingChange]) -> Result<usize, RequestFault> {
    let mut checked = TcpDefaults::default();
    for (at, change) in changes.iter().enumerate() {
        let set = checked.set(change.name.as_str(), &change.value);
        set.map_err(|error| RequestFault {
            at: Some(at),
            ..RequestFault::new("refused", explain(&error))
        })?;
    }
    let list = changes.to_vec();
    let set = move |defaults: &mut TcpDefaults| {
        for change in &list {
            // Ignore the result, because the changes were checked above.
            let _ = defaults.set(change.name.as_str(), &change.value);
        }
    };
    stack.remote.change_tcp(set).map_err(gone)?;
    Ok(changes.len())
}

/// Returns the message about an invalid name or value, with the nearest name.
pub fn explain(error: &TcpDefaultError) -> String {
    match error {
        TcpDefaultError::UnknownName(name) => {
            let known: Vec<_> =
                TCP_DEFAULTS.iter().flat_map(|row| [row.name, row.sysctl]).collect();
            let message = unknown("setting", name, &known);
            match message.contains("did you mean") {
                true => message,
                false => error.to_string(),
            }
        }
        error => error.to_string(),
    }
}
