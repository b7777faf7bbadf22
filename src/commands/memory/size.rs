//! Sizes in readable form: `64M`, `4G`.

/// Parses a size in bytes with a suffix of K, M, G or T (powers of 1024), or none.
pub fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; write a number with K, M, G or T, such as 4G");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// Formats a size for users.
pub fn text(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >= 1 << shift) {
        Some((shift, unit)) if bytes.is_multiple_of(1 << shift) => format!("{} {unit}", bytes >> shift),
        Some((shift, unit)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_formats_sizes() {
        let read = ["7", "64K", "64m", "4G", "1T"].map(|text| bytes(text).unwrap());
        assert_eq!(read, [7, 64 << 10, 64 << 20, 4 << 30, 1 << 40]);
        for wrong in ["", "G", "4X", "-1", "4.5G", "99999999T"] {
            assert!(bytes(wrong).unwrap_err().contains("such as 4G"), "{wrong:?}");
        }
        assert_eq!([7, 64 << 10, 3 << 29].map(text), ["7 B", "64 KiB", "1.5 GiB"]);
    }
}
