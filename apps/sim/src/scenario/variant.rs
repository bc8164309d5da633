//! Variants of a scenario: copies of it with some values replaced.

use toml::{Table, Value};

use super::error::{ScenarioError, one_line, unknown_name};
use super::file::File;

/// Maximum number of variants, including all combinations of a sweep.
const SWEEP_MAX: usize = 200;

/// Variant of a scenario: its name, and the values that it sets, by their paths in the file.
pub(super) struct Variant {
    pub name: String,
    pub set: Table,
    /// Byte offset in the file to which errors about this variant refer.
    pub at: usize,
}

/// Returns the variants listed in the file, each combined with all values of the sweep.
pub(super) fn variants(text: &str, file: &File) -> Result<Vec<Variant>, ScenarioError> {
    let mut variants: Vec<Variant> = Vec::new();
    for keys in &file.variants {
        let (name, at) = (keys.name.get_ref(), keys.name.span().start);
        if variants.iter().any(|variant| variant.name == *name) {
            let message = format!("two variants have the name `{name}`; rename one of them");
            return Err(ScenarioError::at(text, at, message));
        }
        variants.push(Variant { name: name.clone(), set: keys.set.clone(), at });
    }
    for variant in &variants {
        one_line(text, variant.at, &variant.name)?;
    }
    let Some(sweep) = &file.sweep else { return Ok(variants) };
    let at = sweep.span().start;
    let wrong = |message: String| ScenarioError::at(text, at, format!("`sweep`: {message}"));
    if variants.is_empty() {
        variants.push(Variant { name: String::new(), set: Table::new(), at });
    }
    for (path, values) in sweep.get_ref() {
        let values = match values {
            Value::Array(values) if !values.is_empty() => values,
            _ => return Err(wrong(format!("expected a list of values for `{path}`"))),
        };
        if variants.len() * values.len() > SWEEP_MAX {
            return Err(wrong(format!(
                "more than {SWEEP_MAX} combinations; leave some values out"
            )));
        }
        let with = |variant: &Variant, value: &Value| {
            let mut set = variant.set.clone();
            set.insert(path.clone(), value.clone());
            Variant { name: joined(&variant.name, path, value), set, at: variant.at }
        };
        variants = variants
            .iter()
            .flat_map(|variant| values.iter().map(move |value| with(variant, value)))
            .collect();
    }
    for variant in &variants {
        one_line(text, at, &variant.name)?;
    }
    Ok(variants)
}

/// Appends the key and the value of a sweep to the name of a variant.
fn joined(name: &str, path: &str, value: &Value) -> String {
    let key = path.rsplit('.').next().unwrap_or(path);
    let value = text(value);
    let comma = if name.is_empty() { "" } else { ", " };
    format!("{name}{comma}{key} {value}")
}

/// Formats a TOML value as text, without the quotes of a string.
pub(super) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the text of a scenario with the values of `set` replaced and variants removed.
///
/// A path consists of keys separated by dots. An element of a list is addressed by its `name`, as
/// in `link.bottleneck.qdisc`.
pub(super) fn apply(text: &str, set: &Table) -> Result<String, ScenarioError> {
    let mut table: Table = text.parse().map_err(|e| ScenarioError::of_toml(text, &e))?;
    table.remove("variant");
    table.remove("sweep");
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

/// Returns the element of a list that has this name.
///
/// # Errors
/// Returns the names of all elements if none has this name.
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
