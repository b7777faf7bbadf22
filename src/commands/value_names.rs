//! Options with a small set of values.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// A value, its name on the command line, and its description.
pub type NamedValue<T> = (T, &'static str, &'static str);

/// Returns a parser that accepts one of `choices` by its name.
pub fn one_of<T: Copy + Send + Sync + 'static>(
    choices: &'static [NamedValue<T>],
) -> impl TypedValueParser<Value = T> {
    let values = choices.iter().map(|(_, name, meaning)| PossibleValue::new(*name).help(*meaning));
    PossibleValuesParser::new(values).try_map(|text| {
        let found = choices.iter().find(|(_, name, _)| name.eq_ignore_ascii_case(&text));
        found.map(|(value, ..)| *value).ok_or(text)
    })
}
