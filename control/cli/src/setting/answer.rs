//! Answers requests about TCP settings, in the process that has the stack.

use std::collections::BTreeMap;

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
    let values = last_values(changes)?;
    let set = move |defaults: &mut TcpDefaults| {
        for (name, value) in &values {
            // Ignore the result, because `last_values` has checked the changes.
            let _ = defaults.set(name, value);
        }
    };
    stack.remote.change_tcp(set).map_err(gone)?;
    Ok(changes.len())
}

/// Validates changes, and returns the last value of each setting. A long list of changes would
/// delay the packets of the event loops that apply it.
///
/// # Errors
/// Fails if a change is invalid.
fn last_values(changes: &[TcpSettingChange]) -> Result<Vec<(&'static str, String)>, RequestFault> {
    let mut checked = TcpDefaults::default();
    let mut values = BTreeMap::new();
    for (at, change) in changes.iter().enumerate() {
        let row = TcpDefaultRow::find(change.name.as_str());
        let row = row.and_then(|row| checked.set(row.name, &change.value).map(|()| row));
        let row = row.map_err(|error| RequestFault {
            at: Some(at),
            ..RequestFault::new("refused", explain(&error))
        })?;
        values.insert(row.name, change.value.as_str());
    }
    Ok(values.into_iter().map(|(name, value)| (name, value.to_owned())).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_setting_applies() {
        let change = |(name, value): (&'static str, &str)| TcpSettingChange {
            name: Word::known(name),
            value: value.to_owned(),
        };
        let list = [("sack", "off"), ("ecn", "on"), ("net.ipv4.tcp_sack", "1")].map(change);
        let values = last_values(&list).expect("valid changes");
        assert_eq!(values, [("ecn", "on".to_owned()), ("sack", "1".to_owned())]);
        let list = [("sack", "off"), ("sack", "maybe")].map(change);
        assert_eq!(last_values(&list).err().and_then(|fault| fault.at), Some(1));
    }
}
