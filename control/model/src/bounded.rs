//! Bounded deserialization of lists in requests and answers. Otherwise an attacker could cause
//! large allocations by values that are only parsed and then discarded.
//!
//! For tagged enums and flattened structs, serde buffers all fields, including unknown ones, before
//! it knows the type. The buffer needs about 16 bytes per byte of JSON. Therefore elements of such
//! lists are limited before they are deserialized: in requests by their length, in answers by the
//! number of their fields.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Maximum number of words kept of PROGRAM's command line. Further words are dropped.
const WORDS_MAX: usize = 65_536;
/// Maximum number of fields that are read of one list element. A socket has about 60.
const FIELDS_MAX: usize = 128;
/// Maximum number of values that are read of an array in a list element.
const VALUES_MAX: usize = 64;
/// Maximum length in bytes of a string in a list element.
const TEXT_LEN_MAX: usize = 256;

/// Change in the list of a request, deserialized from one element of the list.
pub(crate) trait Change: DeserializeOwned {
    /// Deserializes a change from its JSON text.
    fn read(json: &str) -> serde_json::Result<Self>;
}

/// Deserializes the list of changes of a request.
pub(crate) fn changes<'de, T: Change, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(BoundedChanges(PhantomData))
}

struct BoundedChanges<T>(PhantomData<T>);

impl<'de, T: Change> Visitor<'de> for BoundedChanges<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of changes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut changes = Vec::new();
        while let Some(json) = list.next_element::<&RawValue>()? {
            let change = T::read(json.get());
            let at = changes.len();
            changes.push(change.map_err(|why| Error::custom(format!("change {at}: {why}")))?);
        }
        Ok(changes)
    }
}

/// Deserializes a list in an answer. Each element is first read as [`Small`], which limits its
/// size.
pub(crate) fn list<'de, T, D>(from: D) -> Result<Option<Vec<T>>, D::Error>
where
    T: DeserializeOwned,
    D: Deserializer<'de>,
{
    let list = Option::<Vec<Element<T>>>::deserialize(from)?;
    Ok(list.map(|list| list.into_iter().map(|Element(element)| element).collect()))
}

/// Deserializes a list in a report, as [`list`] does.
pub(crate) fn elements<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: DeserializeOwned,
    D: Deserializer<'de>,
{
    let list = Vec::<Element<T>>::deserialize(from)?;
    Ok(list.into_iter().map(|Element(element)| element).collect())
}

/// List element that is first read as [`Small`].
struct Element<T>(T);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Element<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Small(value) = Small::deserialize(from)?;
        T::deserialize(value).map(Self).map_err(Error::custom)
    }
}

/// Deserializes a command line. Keeps only the first [`WORDS_MAX`] words.
pub(crate) fn words<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    struct Words;

    impl<'de> Visitor<'de> for Words {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of words")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut words = Vec::new();
            while words.len() < WORDS_MAX {
                let Some(word) = list.next_element()? else { return Ok(words) };
                words.push(word);
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(words)
        }
    }

    from.deserialize_seq(Words)
}

/// List element of limited size: an object of numbers, strings and arrays of numbers. Values that
/// are larger or nested become null.
struct Small(Value);

impl<'de> Deserialize<'de> for Small {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(BoundedFields).map(Self)
    }
}

struct BoundedFields;

impl<'de> Visitor<'de> for BoundedFields {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while fields.len() < FIELDS_MAX {
            let Some(key) = object.next_key::<String>()? else { return Ok(Value::Object(fields)) };
            let Field(value) = object.next_value()?;
            if key.len() <= TEXT_LEN_MAX {
                fields.insert(key, value);
            }
        }
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Object(fields))
    }
}

struct Field(Value);

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Field(Value::Null))
    }
}

impl<'de> Visitor<'de> for Field {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(Self(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self, E> {
        Ok(Self(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self, E> {
        Ok(Self(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self, E> {
        Ok(Self(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self, E> {
        Ok(Self(value.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self, E> {
        Ok(Self(if text.len() <= TEXT_LEN_MAX { text.into() } else { Value::Null }))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        let mut values = Vec::new();
        while values.len() < VALUES_MAX {
            let Some(BoundedNumber(value)) = list.next_element()? else {
                return Ok(Self(values.into()));
            };
            values.push(value);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self(values.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self(Value::Null))
    }
}

/// Number in an array. A value of another type becomes null.
struct BoundedNumber(Value);

impl<'de> Deserialize<'de> for BoundedNumber {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let json = <&RawValue>::deserialize(from)?.get();
        Ok(Self(json.parse::<u64>().map_or(Value::Null, Value::from)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct List {
        #[serde(deserialize_with = "list")]
        list: Option<Vec<Value>>,
        #[serde(deserialize_with = "words")]
        words: Vec<String>,
    }

    #[test]
    fn large_and_deep_parts_of_an_element_are_left_out() {
        let (long, deep) = ("x".repeat(TEXT_LEN_MAX + 1), "[".repeat(100) + &"]".repeat(100));
        let numbers = "7,".repeat(VALUES_MAX) + "8";
        let json = format!(
            "{{\"list\":[{{\"long\":\"{long}\",\"deep\":{deep},\"numbers\":[{numbers}],\
             \"object\":{{\"a\":[1]}},\"plain\":[1,\"text\"],\"text\":\"t\",\"float\":1.5}}],\
             \"words\":[{}\"\"]}}",
            "\"\",".repeat(WORDS_MAX)
        );
        let read: List = serde_json::from_str(&json).unwrap();
        let element = &read.list.unwrap()[0];
        let null = Value::Null;
        assert_eq!((&element["long"], &element["object"]), (&null, &null));
        assert_eq!(element["deep"], serde_json::json!([null]));
        assert_eq!(element["numbers"].as_array().map(Vec::len), Some(VALUES_MAX));
        assert_eq!(element["plain"], serde_json::json!([1, null]));
        assert_eq!((&element["text"], &element["float"]), (&"t".into(), &1.5.into()));
        assert_eq!(read.words.len(), WORDS_MAX);
    }
}
