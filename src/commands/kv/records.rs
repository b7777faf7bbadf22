//! Files of records: tab-separated values, JSON lines, or plain lines.

use clap::ValueEnum;
use serde_json::Value;
use std::path::Path;

/// A key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// Format of a file of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One record per line: key, tab, value. The value may contain further tabs.
    Tsv,
    /// One JSON object per line, with "key" and "value"; values that are not strings are stored as JSON.
    Jsonl,
    /// One key per line, which is also the value (for word lists).
    Lines,
}

impl Format {
    /// Returns the format that the name of a file indicates.
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("jsonl" | "ndjson" | "json") => Self::Jsonl,
            _ => Self::Tsv,
        }
    }

    /// Parses the record of a line without its line feed; returns `None` for an empty line.
    ///
    /// # Errors
    /// Returns the fault of the line.
    pub fn parse(self, line: &[u8]) -> Result<Option<Record>, String> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return Ok(None);
        }
        match self {
            Self::Tsv => {
                let tab = line.iter().position(|byte| *byte == b'\t').ok_or(
                    "no tab between key and value; for a list of keys without values use --format lines",
                )?;
                Ok(Some((line[..tab].to_vec(), line[tab + 1..].to_vec())))
            }
            Self::Lines => Ok(Some((line.to_vec(), line.to_vec()))),
            Self::Jsonl => parse_json(line).map(Some),
        }
    }
}

fn parse_json(line: &[u8]) -> Result<Record, String> {
    let record: Value = serde_json::from_slice(line).map_err(|error| format!("invalid JSON: {error}"))?;
    let field = |name: &str| record.get(name).ok_or_else(|| format!("no {name:?} in the object"));
    let key = field("key")?.as_str().ok_or("\"key\" is not a string")?.as_bytes().to_vec();
    let value = match field("value")? {
        Value::String(text) => text.clone().into_bytes(),
        other => other.to_string().into_bytes(),
    };
    Ok((key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, value: &str) -> Result<Option<Record>, String> {
        Ok(Some((key.into(), value.into())))
    }

    #[test]
    fn parses_each_format() {
        assert_eq!(Format::Tsv.parse(b"k\tv\tw\r"), record("k", "v\tw"));
        assert_eq!(Format::Lines.parse(b"it's"), record("it's", "it's"));
        assert_eq!(Format::Jsonl.parse(br#"{"key":"k","value":"v"}"#), record("k", "v"));
        assert_eq!(Format::Jsonl.parse(br#"{"key":"k","value":{"a":1}}"#), record("k", r#"{"a":1}"#));
        assert_eq!(Format::Tsv.parse(b""), Ok(None));
    }

    #[test]
    fn explains_invalid_lines() {
        assert!(Format::Tsv.parse(b"word").unwrap_err().contains("--format lines"));
        for line in [&b"{"[..], br#"{"key":1,"value":2}"#, br#"{"key":"k"}"#, b"7", b"\xff"] {
            assert!(Format::Jsonl.parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn derives_the_format_from_the_name() {
        assert_eq!(Format::of(Path::new("a.jsonl")), Format::Jsonl);
        assert_eq!(Format::of(Path::new("a.tsv")), Format::Tsv);
        assert_eq!(Format::of(Path::new("words")), Format::Tsv);
    }
}
