//! Control characters in a scenario, which TOML allows in escapes. Titles and names go to terminals
//! and into SVG, HTML and CSV: a terminal obeys them, and XML forbids them.

use toml::Value;

use super::error::ScenarioError;

/// Refuses a scenario with a control character in a key or a value. A description may have lines
/// and tabs.
pub(super) fn check(text: &str) -> Result<(), ScenarioError> {
    // The strict reader tells what is wrong with the text itself.
    let Ok(table) = text.parse::<toml::Table>() else { return Ok(()) };
    match in_value("", &Value::Table(table)) {
        None => Ok(()),
        Some((key, found)) => {
            let key = key.escape_debug();
            let code = u32::from(found);
            Err(ScenarioError::without_line(format!(
                "`{key}` has the control character U+{code:04X}; leave it out"
            )))
        }
    }
}

/// The key with the first control character, and that character.
fn in_value(key: &str, value: &Value) -> Option<(String, char)> {
    let found = |text: &str| text.chars().find(|c| c.is_control() && !is_layout(key, *c));
    let of_key = |found| (key.to_owned(), found);
    match value {
        Value::String(text) => found(text).map(of_key),
        Value::Array(list) => list.iter().find_map(|value| in_value(key, value)),
        Value::Table(table) => table.iter().find_map(|(key, value)| {
            let in_key = key.chars().find(|c| c.is_control()).map(|c| (key.clone(), c));
            in_key.or_else(|| in_value(key, value))
        }),
        _ => None,
    }
}

fn is_layout(key: &str, c: char) -> bool {
    key == "description" && (c == '\n' || c == '\t')
}
