//! Options that take one of a few values.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// A value, its name on the command line, and what it means.
pub type Choice<T> = (T, &'static str, &'static str);

/// Takes one of `choices` by its name.
pub fn one_of<T: Copy + Send + Sync + 'static>(
    choices: &'static [Choice<T>],
) -> impl TypedValueParser<Value = T> {
    let values = choices.iter().map(|(_, name, meaning)| PossibleValue::new(*name).help(*meaning));
    PossibleValuesParser::new(values).try_map(|text| {
        let found = choices.iter().find(|(_, name, _)| name.eq_ignore_ascii_case(&text));
        found.map(|(value, ..)| *value).ok_or(text)
    })
}
