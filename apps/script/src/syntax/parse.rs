//! Parses the events of a script.

use super::cursor::{Cursor, SyntaxError};
use super::tree::{CallSpec, EventAction, EventTime, OptionLine, Script, ScriptEvent};
use super::value::{self, Value};
use super::{packet, symbols};

/// Parses the text of a script.
///
/// # Errors
/// Returns the position of the first invalid word, and the reason.
pub fn parse(text: &str) -> Result<Script, SyntaxError> {
    let mut cursor = Cursor::new(text);
    let mut script = Script::default();
    while cursor.eat("--")? {
        script.options.push(option_line(&mut cursor)?);
    }
    while !cursor.is_at_end()? {
        script.events.push(event(&mut cursor)?);
    }
    Ok(script)
}

fn option_line(cursor: &mut Cursor<'_>) -> Result<OptionLine, SyntaxError> {
    let line = cursor.line();
    let name = cursor.word()?.to_owned();
    let value = match cursor.rest().starts_with('=') {
        true => {
            cursor.expect("=")?;
            cursor.take_while(|byte| !byte.is_ascii_whitespace()).to_owned()
        }
        false => String::new(),
    };
    Ok(OptionLine { line, name, value })
}

fn event(cursor: &mut Cursor<'_>) -> Result<ScriptEvent, SyntaxError> {
    let time = match cursor.peek()? {
        b'`' => EventTime::Any,
        _ => event_time(cursor)?,
    };
    cursor.skip_space()?;
    let line = cursor.line();
    let action = if cursor.eat("`")? {
        EventAction::Command(cursor.until("`")?.to_owned())
    } else if cursor.eat("%{")? {
        EventAction::Code(cursor.until("}%")?.to_owned())
    } else if cursor.eat("<")? {
        EventAction::Receive(packet::parse(cursor)?)
    } else if cursor.eat(">")? {
        EventAction::Expect(packet::parse(cursor)?)
    } else {
        EventAction::Call(call(cursor)?)
    };
    Ok(ScriptEvent { line, time, action })
}

fn event_time(cursor: &mut Cursor<'_>) -> Result<EventTime, SyntaxError> {
    if cursor.eat("*")? {
        return Ok(EventTime::Any);
    }
    let is_relative = cursor.eat("+")?;
    let start = cursor.seconds()?;
    if cursor.eat("~")? {
        cursor.eat("+")?;
        let end = cursor.seconds()?;
        return Ok(match is_relative {
            true => EventTime::Within(start, end),
            false => EventTime::Between(start, end),
        });
    }
    if cursor.eat("...")? {
        let end = cursor.seconds()?;
        return Ok(match is_relative {
            true => EventTime::LastingAfter(start, end),
            false => EventTime::Lasting(start, end),
        });
    }
    Ok(if is_relative { EventTime::After(start) } else { EventTime::At(start) })
}

fn call(cursor: &mut Cursor<'_>) -> Result<CallSpec, SyntaxError> {
    let name = cursor.word()?.to_owned();
    cursor.expect("(")?;
    let args = value::list(cursor, ")", value::parse)?;
    cursor.expect("=")?;
    let result = value::parse(cursor)?;
    let mut errno = None;
    if result == Value::Int(-1) && cursor.peek()? == b'E' {
        let word = cursor.word()?;
        if symbols::errno(word).is_none() {
            return Err(cursor.error(&format!("unknown error {word}")));
        }
        errno = Some(word.to_owned());
    }
    // Skip a note in parentheses, as strace(1) prints it after an error.
    if cursor.eat("(")? {
        cursor.until(")")?;
    }
    Ok(CallSpec { name, args, result, errno })
}
