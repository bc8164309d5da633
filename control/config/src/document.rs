//! Typed access to a TOML document. Keys of a table are removed as they are read, and values know
//! their position in the text.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::error::{ConfigError, unknown};

/// A table of a file. [`Section::finish`] refuses keys that were not taken.
pub(crate) struct Section<'a> {
    text: &'a str,
    /// Byte at which the table begins.
    pub start: usize,
    left: BTreeMap<&'a str, DocumentValue<'a>>,
    known: Vec<&'a str>,
}

/// A value in a file, with its key.
#[derive(Clone, Copy)]
pub(crate) struct DocumentValue<'a> {
    text: &'a str,
    key: &'a str,
    /// Byte at which the key begins.
    key_start: usize,
    /// Byte at which the value begins.
    pub start: usize,
    value: &'a DeValue<'a>,
}

impl<'a> Section<'a> {
    pub fn new(text: &'a str, start: usize, table: &'a DeTable<'a>) -> Self {
        let entry = |(key, value): (&'a Spanned<DeString<'a>>, &'a Spanned<DeValue<'a>>)| {
            let key_start = key.span().start;
            let key: &std::borrow::Cow<'a, str> = key.get_ref();
            let start = value.span().start;
            let value = value.get_ref();
            (key.as_ref(), DocumentValue { text, key: key.as_ref(), key_start, start, value })
        };
        Self { text, start, left: table.iter().map(entry).collect(), known: Vec::new() }
    }

    /// Removes and returns the value of a key.
    pub fn take(&mut self, key: &'a str) -> Option<DocumentValue<'a>> {
        self.known.push(key);
        self.left.remove(key)
    }

    /// Removes and returns the value of a required key.
    pub fn require(&mut self, key: &'a str) -> Result<DocumentValue<'a>, ConfigError> {
        let missing = || ConfigError::at(self.text, self.start, format!("missing key `{key}`"));
        self.known.push(key);
        self.left.remove(key).ok_or_else(missing)
    }

    /// Fails if the table has unknown keys.
    pub fn finish(self) -> Result<(), ConfigError> {
        let Some(value) = self.left.values().min_by_key(|value| value.key_start) else {
            return Ok(());
        };
        let message = unknown("key", value.key, &self.known);
        Err(ConfigError::at(self.text, value.key_start, message))
    }
}

impl<'a> DocumentValue<'a> {
    /// Creates an error at the value.
    pub fn error(&self, message: impl Into<String>) -> ConfigError {
        ConfigError::at(self.text, self.start, message)
    }

    fn wrong(&self, expected: &str) -> ConfigError {
        let found = self.value.type_str();
        self.error(format!("`{}` is of the type {found}; expected {expected}", self.key))
    }

    pub fn string(&self) -> Result<&'a str, ConfigError> {
        self.value.as_str().ok_or_else(|| self.wrong("a string in quotes"))
    }

    /// Parses a string.
    pub fn parse<T>(
        &self,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        parse(self.string()?).map_err(|why| self.error(why))
    }

    /// Returns a string, or the digits of a whole number.
    pub fn word(&self) -> Result<String, ConfigError> {
        match self.value {
            DeValue::String(text) => Ok(text.clone().into_owned()),
            DeValue::Integer(number) if number.radix() == 10 => Ok(number.to_string()),
            _ => Err(self.wrong("a string or a whole number")),
        }
    }

    pub fn flag(&self) -> Result<bool, ConfigError> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    /// Returns the elements of an array.
    pub fn list(&self) -> Result<Vec<DocumentValue<'a>>, ConfigError> {
        let array = self.value.as_array().ok_or_else(|| self.wrong("an array"))?;
        let element = |value: &'a Spanned<DeValue<'a>>| DocumentValue {
            start: value.span().start,
            value: value.get_ref(),
            ..*self
        };
        Ok(array.iter().map(element).collect())
    }

    /// Returns a table, as `[dns]` writes it.
    pub fn table(&self) -> Result<Section<'a>, ConfigError> {
        match self.value {
            DeValue::Table(table) => Ok(Section::new(self.text, self.start, table)),
            _ => Err(self.wrong(&format!("a table, as [{}]", self.key))),
        }
    }

    /// Returns the tables of an array, as `[[port]]` writes them.
    pub fn tables(&self) -> Result<Vec<Section<'a>>, ConfigError> {
        let wrong = || self.wrong(&format!("tables, as [[{}]]", self.key));
        let array = self.value.as_array().ok_or_else(wrong)?;
        let table = |value: &'a Spanned<DeValue<'a>>| match value.get_ref() {
            DeValue::Table(table) => Ok(Section::new(self.text, value.span().start, table)),
            _ => Err(wrong()),
        };
        array.iter().map(table).collect()
    }
}
