//! Errors of all packages: the message of a variant does not include the source, which `source()` returns. Places that
//! show an error to users call `with_sources`.

use std::fs;
use std::path::Path;

use syn::{Attribute, Fields, Item};

/// Directories of the packages.
const DIRECTORIES: [&str; 8] =
    ["src", "fabric", "runtime", "services", "memory", "dropin", "bindings", "lab"];

/// Returns the arguments of `#[error(...)]`, without spaces.
fn message(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("error"))?;
    Some(attribute.meta.require_list().unwrap().tokens.to_string().replace(' ', ""))
}

/// Returns the name or the index of the field that `source()` returns.
fn source(fields: &Fields) -> Option<String> {
    let names = fields
        .iter()
        .enumerate()
        .map(|(index, field)| (field, field.ident.as_ref().map_or(index.to_string(), ToString::to_string)));
    let is_marked =
        |attribute: &Attribute| attribute.path().is_ident("source") || attribute.path().is_ident("from");
    names
        .filter(|(field, name)| name == "source" || field.attrs.iter().any(is_marked))
        .map(|(_, name)| name)
        .next()
}

/// Returns whether a message includes a field: `{field}`, `{field:?}` or the argument `.field`.
fn includes(message: &str, field: &str) -> bool {
    let parts = message.split(['{', '}', ':', ',', '.', '(', ')', '=']);
    message.contains(&format!("{{{field}}}"))
        || message.contains(&format!("{{{field}:"))
        || (message.contains(&format!(".{field}")) && parts.clone().any(|part| part == field))
}

/// Adds the errors of a file with sources, and those of them whose messages include the source.
fn check(file: &Path, items: &[Item], found: &mut usize, wrong: &mut Vec<String>) {
    let mut check_fields = |name: String, attributes: &[Attribute], fields: &Fields| {
        if let (Some(message), Some(source)) = (message(attributes), source(fields)) {
            *found += 1;
            if includes(&message, &source) {
                wrong.push(format!("{}: {name}: {message}", file.display()));
            }
        }
    };
    for item in items {
        match item {
            Item::Enum(item) => {
                for variant in &item.variants {
                    check_fields(
                        format!("{}::{}", item.ident, variant.ident),
                        &variant.attrs,
                        &variant.fields,
                    );
                }
            }
            Item::Struct(item) => check_fields(item.ident.to_string(), &item.attrs, &item.fields),
            _ => {}
        }
    }
    for item in items {
        if let Item::Mod(module) = item
            && let Some((_, items)) = &module.content
        {
            check(file, items, found, wrong);
        }
    }
}

fn check_directory(directory: &Path, found: &mut usize, wrong: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            check_directory(&path, found, wrong);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            if text.contains("#[error(") {
                check(&path, &syn::parse_file(&text).unwrap().items, found, wrong);
            }
        }
    }
}

#[test]
fn messages_do_not_include_sources() {
    let (mut found, mut wrong) = (0, Vec::new());
    for directory in DIRECTORIES {
        check_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join(directory), &mut found, &mut wrong);
    }
    assert!(found > 50, "only {found} errors with sources");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn finds_a_field_in_a_message() {
    assert!(includes("\"{source}\"", "source") && includes("\"a{0:?}\"", "0"));
    assert!(includes("\"{dir}\",dir=.0.display()", "0"));
    assert!(!includes("\"{0}:{what}\"", "1") && !includes("transparent", "0"));
}
