//! Text of a page: escaping, and short forms of numbers.

/// Escapes text for use in HTML, including attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Returns a number with four significant digits.
pub(crate) fn compact(number: f64) -> String {
    const DIGITS: i32 = 4;
    if number == 0.0 || !number.is_finite() {
        return if number == 0.0 { "0".to_owned() } else { "–".to_owned() };
    }
    let decimals = (DIGITS - 1 - number.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{number:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_is_taken_for_markup() {
        assert_eq!(escape("<a href='x\"&'>"), "&lt;a href=&#39;x&quot;&amp;&#39;&gt;");
        assert_eq!(escape("µs ≤ 7"), "µs ≤ 7");
    }

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (11.26, "11.26"),
            (0.123_456, "0.1235"),
            (16_384.0, "16384"),
            (10.0, "10"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (99.999_99, "100"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(compact(number), text);
        }
    }
}
