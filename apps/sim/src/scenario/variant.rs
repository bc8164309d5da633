//! Variants: a scenario with some of its values replaced.

use toml::{Table, Value};

use super::error::{ScenarioError, unknown_name};

/// The text of a scenario with the values of `set` in their places and without variants.
///
/// A place is a path of keys with points; an element of a list is named by its `name`, as in
/// `link.bottleneck.qdisc`.
pub(super) fn apply(text: &str, set: &Table) -> Result<String, ScenarioError> {
    let mut table: Table = text.parse().map_err(|e| ScenarioError::of_toml(text, &e))?;
    table.remove("variant");
    for (path, value) in set {
        put(&mut table, path, value.clone())?;
    }
    toml::to_string(&table).map_err(|error| ScenarioError::without_line(error.to_string()))
}

fn put(table: &mut Table, path: &str, value: Value) -> Result<(), ScenarioError> {
    let mut steps: Vec<&str> = path.split('.').collect();
    let last = steps.pop().unwrap_or_default();
    let mut at = table;
    let mut steps = steps.into_iter();
    while let Some(step) = steps.next() {
        let known: Vec<String> = at.keys().cloned().collect();
        at = match at.get_mut(step) {
            Some(Value::Table(table)) => table,
            Some(Value::Array(list)) => {
                let wanted = steps.next().unwrap_or_default();
                named(list, wanted).map_err(|known| wrong(path, "element", wanted, &known))?
            }
            _ => return Err(wrong(path, "key", step, &known)),
        };
    }
    at.insert(last.to_owned(), value);
    Ok(())
}

/// The element of a list with a name; otherwise the names that are there.
fn named<'a>(list: &'a mut [Value], wanted: &str) -> Result<&'a mut Table, Vec<String>> {
    let name = |value: &Value| {
        value.get("name").and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
    };
    let names: Vec<String> = list.iter().map(name).collect();
    let at = names.iter().position(|name| name == wanted);
    match at.and_then(|at| list.get_mut(at)) {
        Some(Value::Table(table)) => Ok(table),
        _ => Err(names),
    }
}

fn wrong(path: &str, what: &str, name: &str, known: &[String]) -> ScenarioError {
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let message = format!("`{path}`: {}", unknown_name(what, name, &known));
    ScenarioError::without_line(message)
}
