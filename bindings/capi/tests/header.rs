//! Checks that `include/farcall.h` is the header of the sources, that the library exports what the header declares,
//! and that the man pages name all functions.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn package() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

const INTRODUCTION: &str = "\
/* Farcall: remote calls, a key-value store and byte streams over RDMA verbs.
 *
 * Generated from the sources of the library: change those, then run
 * FARCALL_WRITE_HEADER=1 cargo test -p farcall-capi --test header.
 *
 * Functions that can fail return a farcall_code; farcall_error_message returns the message of the last error. Objects are
 * opaque and used by one thread at a time; different objects are independent. Null and misaligned pointers are
 * FARCALL_INVALID; farcall(3), Pointers, states how long pointers must be valid. Lengths are in bytes, times in the unit
 * of their name. Texts are UTF-8 and end with a zero byte. A forked child uses none of its parent's objects. */";

/// Returns the header that cbindgen generates from the current sources.
fn made() -> String {
    let sources = ["errors", "options", "kv", "rpc", "server", "stream"];
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Type,
        header: Some(INTRODUCTION.to_owned()),
        include_guard: Some("FARCALL_H".to_owned()),
        cpp_compat: true,
        documentation_style: cbindgen::DocumentationStyle::C99,
        line_length: 110,
        no_includes: true,
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        usize_is_size_t: true,
        ..cbindgen::Config::default()
    };
    config.enumeration.rename_variants = cbindgen::RenameRule::QualifiedScreamingSnakeCase;
    config.export.include = ["Code", "farcall_executed", "farcall_put_mode"].map(str::to_owned).to_vec();
    config.export.rename.insert("Code".to_owned(), "farcall_code".to_owned());
    let mut builder = cbindgen::Builder::new()
        .with_config(config)
        .with_src(package().join("../farcall/src/binding/code.rs"));
    for source in sources {
        builder = builder.with_src(package().join("src").join(source).with_extension("rs"));
    }
    let mut text = Vec::new();
    builder.generate().expect("the sources are understood").write(&mut text);
    String::from_utf8(text).unwrap().replace("FARCALL_CODE_", "FARCALL_").replace("  _FARCALL_", "  FARCALL_")
}

#[test]
fn the_header_is_that_of_the_sources() {
    let path = package().join("include/farcall.h");
    let made = made();
    if std::env::var_os("FARCALL_WRITE_HEADER").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert_eq!(
        fs::read_to_string(path).unwrap(),
        made,
        "make it anew: FARCALL_WRITE_HEADER=1 cargo test -p farcall-capi --test header"
    );
}

/// Returns the words of a text that begin with `farcall_`, as the functions and types of the library do.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("farcall_")).map(str::to_owned).collect()
}

fn functions(header: &str) -> BTreeSet<String> {
    let is_called = |name: &String| header.contains(&format!("{name}("));
    names(header).into_iter().filter(is_called).collect()
}

/// Checks that the exported symbols are exactly the declared functions.
#[test]
fn the_library_exports_what_the_header_declares() {
    let declared = functions(&fs::read_to_string(package().join("include/farcall.h")).unwrap());
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().unwrap();
    assert!(output.status.success(), "nm: {}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<String> =
        listed.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect();
    assert_eq!(exported, declared);
    assert!(declared.len() > 25, "only {declared:?}");
}

/// Returns the path of the shared library that cargo built next to this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libfarcall_capi.so")
}

fn pages() -> Vec<(PathBuf, String)> {
    let folder = fs::read_dir(package().join("man")).unwrap().map(|entry| entry.unwrap().path());
    folder.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn each_function_has_a_man_page_and_the_pages_name_no_other() {
    let header = fs::read_to_string(package().join("include/farcall.h")).unwrap();
    let pages = pages();
    let (declared, known) = (functions(&header), names(&header));
    let named: BTreeSet<String> = pages.iter().flat_map(|(_, text)| names(text)).collect();
    let stems: BTreeSet<String> =
        pages.iter().map(|(path, _)| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    let missing: Vec<_> = declared.difference(&named).collect();
    assert!(missing.is_empty(), "in no man page: {missing:?}");
    let unknown: Vec<_> =
        named.iter().filter(|name| !known.contains(*name) && !stems.contains(*name)).collect();
    assert!(unknown.is_empty(), "not in the header: {unknown:?}");
}

/// Skipped with a message if `man` is not installed.
#[test]
fn the_man_pages_have_no_warnings() {
    for (path, _) in pages() {
        let Some(output) = formatted(&path) else {
            eprintln!("SKIPPED: no man here, which would check the pages");
            return;
        };
        let warnings = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && warnings.is_empty(), "{}: {warnings}", path.display());
        assert!(String::from_utf8_lossy(&output.stdout).contains("NAME"), "{}: no text", path.display());
    }
}

fn formatted(page: &Path) -> Option<std::process::Output> {
    let mut man = Command::new("man");
    man.args(["--warnings", "-E", "UTF-8", "-P", "cat", "-l"]).arg(page).env("MANWIDTH", "100");
    man.output().ok()
}
