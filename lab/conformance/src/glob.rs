//! Patterns of case names.

/// Returns whether a name matches a pattern: `*` matches any characters, including none and `/`; `?` matches one.
pub fn matches(pattern: &str, name: &str) -> bool {
    matches_bytes(pattern.as_bytes(), name.as_bytes())
}

fn matches_bytes(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|at| matches_bytes(rest, &name[at..])),
        ([b'?', pattern @ ..], [_, name @ ..]) => matches_bytes(pattern, name),
        ([wanted, pattern @ ..], [found, name @ ..]) => wanted == found && matches_bytes(pattern, name),
        _ => pattern.is_empty() && name.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name, expected) in [
            ("rc/*", "rc/write/bounds", true),
            ("*bounds", "rc/write/bounds", true),
            ("*/wr?te/*", "rc/write/bounds", true),
            ("rc", "rc/write", false),
            ("*", "", true),
            ("a*b*c", "axxbyybzzc", true),
            ("a*b*c", "axxbyybzz", false),
            ("?", "", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
