//! Extraction of examples from the source of a man page, as text: the subset of roff that such pages use, without
//! groff, which may be missing.

/// Returns the verbatim text (from `.nf` to `.fi`, or `.EX` to `.EE`) in the sections EXAMPLE or EXAMPLES, in order.
pub fn examples(page: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let (mut is_example, mut is_verbatim) = (false, false);
    for line in page.lines() {
        let mut parts = line.split_whitespace();
        match parts.next() {
            Some(".SH") => {
                is_example = parts.next().is_some_and(|name| name.trim_matches('"').starts_with("EXAMPLE"));
                is_verbatim = false;
            }
            // Some pages repeat it instead of ending it.
            Some(".nf" | ".EX") if is_example && !is_verbatim => {
                is_verbatim = true;
                found.push(String::new());
            }
            Some(".fi" | ".EE") => is_verbatim = false,
            Some(_) | None if is_verbatim => {
                let text = found.last_mut().expect("pushed where this began");
                // Other requests concern spacing: paragraphs, indentation.
                if !line.starts_with(['.', '\'']) {
                    text.push_str(&plain(line));
                }
                text.push('\n');
            }
            _ => {}
        }
    }
    found
}

/// Returns a line without its escapes.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, escape)) = rest.split_once('\\') {
        text.push_str(before);
        let (kind, after) = first(escape);
        rest = match kind {
            "-" | " " => {
                text.push_str(kind);
                after
            }
            "e" | "\\" => {
                text.push('\\');
                after
            }
            // Zero width.
            "&" | "|" | "^" | "" => after,
            "f" => name(after).1,
            "[" | "(" => {
                let (name, after) = name(escape);
                text.push(glyph(name));
                after
            }
            _ => panic!("\\{kind} is an escape that this test does not know, in: {line}"),
        };
    }
    text + rest
}

/// Splits off the first character, if there is one.
fn first(text: &str) -> (&str, &str) {
    text.split_at(text.chars().next().map_or(0, char::len_utf8))
}

/// Splits off a name of the form `x`, `(xy` or `[any]`.
fn name(text: &str) -> (&str, &str) {
    if let Some(long) = text.strip_prefix('[') {
        return long.split_once(']').expect("a name in brackets ends");
    }
    match text.strip_prefix('(') {
        Some(two) => two.split_at(2),
        None => first(text),
    }
}

/// Returns a character of C for which roff has a name.
fn glyph(name: &str) -> char {
    match name {
        "dq" => '"',
        "aq" => '\'',
        "rs" => '\\',
        "ti" => '~',
        "ha" => '^',
        "at" => '@',
        "ga" => '`',
        "sh" => '#',
        "Do" => '$',
        "hy" => '-',
        _ => panic!("{name} is a character that this test does not know"),
    }
}

#[test]
fn examples_are_what_a_page_prints() {
    let page = "\
.SH NAME
.nf
not this
.fi
.SH \"EXAMPLES\"
Words around.
.nf
\\f[C]
.in +8
puts(\\[dq]a\\(aqs \\-1\\en\\[dq]);
.PP
\\&.
\\fBint\\fR x;
.fi
More words.
.EX
second
.EE
.SH AUTHORS
.nf
nor this
";
    assert_eq!(examples(page), ["\n\nputs(\"a's -1\\n\");\n\n.\nint x;\n", "second\n"]);
}
