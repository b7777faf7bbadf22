//! Import order of this crate's directories: a lower directory never names a higher one.

use std::fs;
use std::path::{Path, PathBuf};

/// From the highest to the lowest.
const DIRECTORIES: [&str; 4] = ["verbs", "roce", "shm_transport", "process"];

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// Returns the modules that enclose a file, from the root of the crate: those that `super` can refer to.
fn module_of(src: &Path, file: &Path) -> Vec<String> {
    let relative = file.strip_prefix(src).unwrap().with_extension("");
    let mut names: Vec<String> = relative.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    if names.last().is_some_and(|name| name == "mod" || name == "lib") {
        names.pop();
    }
    names
}

/// Returns the first module below the root of every path in `text` that begins with `crate` or `super`.
fn named_directories(module: &[String], text: &str) -> Vec<String> {
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap()).collect();
    let code = code.join("\n");
    let words: Vec<&str> = code
        .split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
        .map(|word| word.trim_end_matches(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')))
        .collect();
    let mut found = Vec::new();
    for word in words {
        let parts: Vec<&str> = word.split("::").collect();
        // Inside nested modules of a file `super` leads less far up. A path that stays in the directory is then
        // assigned to the directory all the same.
        let mut at: Vec<&str> = match parts[0] {
            "crate" => Vec::new(),
            "super" => module.iter().map(String::as_str).collect(),
            _ => continue,
        };
        for part in &parts {
            match *part {
                "crate" | "" => {}
                "super" => drop(at.pop()),
                name => at.push(name),
            }
        }
        found.extend(at.first().map(|directory| (*directory).to_owned()));
    }
    found
}

/// Returns the files that name a directory above their own.
fn upward_imports(src: &Path) -> Vec<String> {
    let rank = |directory: &str| DIRECTORIES.iter().position(|known| *known == directory);
    let mut wrong = Vec::new();
    for file in sources(src) {
        let module = module_of(src, &file);
        let Some(own) = module.first().and_then(|directory| rank(directory)) else { continue };
        let text = fs::read_to_string(&file).unwrap();
        for named in named_directories(&module, &text) {
            if rank(&named).is_some_and(|named| named < own) {
                wrong.push(format!("{} names {named}", file.display()));
            }
        }
    }
    wrong
}

#[test]
fn imports_go_from_verbs_to_roce_to_shm_transport_to_process() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let root: Vec<PathBuf> = fs::read_dir(&src).unwrap().map(|entry| entry.unwrap().path()).collect();
    let mut names: Vec<&str> = root.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["lib.rs", "process", "roce", "shm_transport", "verbs"],
        "a new directory needs a position in the import order"
    );
    assert_eq!(upward_imports(&src), Vec::<String>::new());
}

#[test]
fn finds_every_form_of_a_path() {
    let module = ["process", "peer"].map(str::to_owned);
    let named = |text| named_directories(&module, text);
    assert_eq!(named("use crate::shm_transport::qp::Qp;"), ["shm_transport"]);
    assert_eq!(named("use crate::shm_transport::{ShmTransport, cq};"), ["shm_transport"]);
    assert_eq!(named("let x = super::super::verbs::device();"), ["verbs"]);
    assert_eq!(named("use super::peer::Peer;"), ["process"]);
    assert_eq!(named("// as crate::shm_transport says"), Vec::<String>::new());
    assert_eq!(named("pub(in crate::shm_transport) fn f() {}"), ["shm_transport"]);
}
