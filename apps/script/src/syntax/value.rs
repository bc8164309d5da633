//! Arguments and results of the system calls in a script.

use std::fmt;

use super::cursor::{Cursor, SyntaxError};
use super::symbols;

/// Value of an argument or a result, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `...`: the interpreter chooses the value, or does not compare it.
    Any,
    Null,
    /// Number, or several symbols combined with `|`.
    Int(i64),
    Text(String),
    List(Vec<Value>),
    /// Fields with their names. A value without a name has an empty one.
    Struct(Vec<(String, Value)>),
}

impl Value {
    pub fn int(&self) -> Option<i64> {
        match self {
            Value::Int(n) => Some(*n),
            Value::List(list) => match list.as_slice() {
                [value] => value.int(),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the field `name` of a struct, or of the only struct in a list. `None` if there is no
    /// such field.
    pub fn field(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Struct(fields) => {
                fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
            }
            Value::List(list) if list.len() == 1 => list.first()?.field(name),
            _ => None,
        }
    }

    /// Returns whether `actual` equals the value in the script. Fields that the script omits are
    /// not compared.
    pub fn matches(&self, actual: &Value) -> bool {
        match (self, actual) {
            (Value::Any, _) | (_, Value::Any) => true,
            (Value::List(wanted), Value::List(actual)) => {
                wanted.len() == actual.len() && wanted.iter().zip(actual).all(|(w, a)| w.matches(a))
            }
            (Value::Struct(wanted), Value::Struct(_)) => {
                let is_same = |(name, value): &(String, Value)| match actual.field(name) {
                    Some(actual) => value.matches(actual),
                    None => name.is_empty(),
                };
                wanted.iter().all(is_same)
            }
            (Value::List(list), actual) if list.len() == 1 => list[0].matches(actual),
            _ => self == actual,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Any => f.write_str("..."),
            Value::Null => f.write_str("NULL"),
            Value::Int(n) => write!(f, "{n}"),
            Value::Text(text) => write!(f, "\"{text}\""),
            Value::List(list) => {
                let list: Vec<String> = list.iter().map(Value::to_string).collect();
                write!(f, "[{}]", list.join(", "))
            }
            Value::Struct(fields) => {
                let text = |(name, value): &(String, Value)| match name.as_str() {
                    "" => value.to_string(),
                    _ => format!("{name}={value}"),
                };
                write!(f, "{{{}}}", fields.iter().map(text).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Parses the value of an argument.
pub fn parse(cursor: &mut Cursor<'_>) -> Result<Value, SyntaxError> {
    cursor.nested(value)
}

fn value(cursor: &mut Cursor<'_>) -> Result<Value, SyntaxError> {
    if cursor.eat("...")? {
        return Ok(Value::Any);
    }
    match cursor.peek()? {
        b'[' => {
            cursor.expect("[")?;
            Ok(Value::List(list(cursor, "]", parse)?))
        }
        b'{' => {
            cursor.expect("{")?;
            Ok(Value::Struct(list(cursor, "}", field)?))
        }
        b'"' => {
            cursor.expect("\"")?;
            Ok(Value::Text(cursor.until("\"")?.to_owned()))
        }
        b'0'..=b'9' | b'-' => flags(cursor),
        _ if cursor.eat_word("NULL")? => Ok(Value::Null),
        _ => flags(cursor),
    }
}

/// Parses a list of values separated by commas, up to `end`.
pub fn list<T>(
    cursor: &mut Cursor<'_>,
    end: &str,
    item: impl Fn(&mut Cursor<'_>) -> Result<T, SyntaxError>,
) -> Result<Vec<T>, SyntaxError> {
    let mut items = Vec::new();
    while !cursor.eat(end)? {
        items.push(item(cursor)?);
        if !cursor.eat(",")? {
            cursor.expect(end)?;
            break;
        }
    }
    Ok(items)
}

/// Parses a number or symbol, or several of them combined with `|`.
fn flags(cursor: &mut Cursor<'_>) -> Result<Value, SyntaxError> {
    let mut value = 0;
    loop {
        value |= match cursor.peek()? {
            b'0'..=b'9' | b'-' => cursor.number::<i64>()?,
            _ => match symbol(cursor)? {
                Value::Int(n) => n,
                other => return Ok(other),
            },
        };
        if !cursor.eat("|")? {
            return Ok(Value::Int(value));
        }
    }
}

/// Parses a constant, or a call of a function that converts one, such as `htons`.
fn symbol(cursor: &mut Cursor<'_>) -> Result<Value, SyntaxError> {
    cursor.skip_space()?;
    let error = |cursor: &Cursor<'_>, text: &str| cursor.error(text);
    let here = cursor.error("");
    let name = cursor.word()?;
    match name {
        "htons" | "htonl" | "inet_addr" => {
            cursor.expect("(")?;
            let value = parse(cursor)?;
            cursor.expect(")")?;
            Ok(value)
        }
        "inet_pton" => {
            cursor.expect("(")?;
            cursor.word()?;
            cursor.expect(",")?;
            let value = parse(cursor)?;
            cursor.expect(")")?;
            Ok(value)
        }
        _ => match symbols::value(name) {
            Some(value) => Ok(Value::Int(value)),
            None => {
                let at = error(cursor, &format!("unknown name {name}"));
                Err(SyntaxError { line: here.line, column: here.column, ..at })
            }
        },
    }
}

/// Parses a field: `name=value`, `name(...)=value`, or a value without a name.
fn field(cursor: &mut Cursor<'_>) -> Result<(String, Value), SyntaxError> {
    let is_name = cursor.peek()?.is_ascii_lowercase();
    if !is_name || cursor.rest().starts_with("htons") || cursor.rest().starts_with("inet_") {
        return Ok((String::new(), parse(cursor)?));
    }
    let name = cursor.word()?.to_owned();
    if cursor.eat("(")? {
        cursor.until(")")?;
    }
    cursor.expect("=")?;
    Ok((name, parse(cursor)?))
}
