//! The documents at the root: every link leads somewhere, and README's commands exist.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const DOCUMENTS: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/SEMANTICS.md",
    "docs/rdma-in-ci.md",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(document: &str) -> String {
    fs::read_to_string(root().join(document)).unwrap_or_else(|error| panic!("{document}: {error}"))
}

/// The targets of a document's links.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// The anchor of a heading, as Markdown renderers make it.
fn anchor(heading: &str) -> String {
    let kept =
        heading.trim_start_matches('#').trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn links_of_the_documents_lead_somewhere() {
    for document in DOCUMENTS {
        let text = read(document);
        let folder = root().join(document).parent().map(Path::to_owned).unwrap();
        for target in links(&text).filter(|target| !target.starts_with("https://")) {
            let exists = match target.strip_prefix('#') {
                Some(wanted) => text.lines().any(|line| line.starts_with('#') && anchor(line) == wanted),
                None => folder.join(target.split('#').next().unwrap_or(target)).exists(),
            };
            assert!(exists, "{document} links to {target}, which does not exist");
        }
    }
}

/// Source files and modules that ARCHITECTURE.md names exist: the tour must not lead astray.
#[test]
fn paths_in_the_architecture_exist() {
    let text = read("ARCHITECTURE.md");
    let is_path =
        |code: &&str| code.contains('/') && !code.contains([' ', '<']) && !code.starts_with("/dev/");
    // Code spans are the odd pieces between backticks. `crates/x` stands for any crate.
    for path in text.split('`').skip(1).step_by(2).filter(is_path).filter(|path| *path != "crates/x") {
        let exists = root().join(path).exists() || root().join("crates").join(path).exists();
        assert!(exists, "ARCHITECTURE.md names {path}, which does not exist");
    }
}

/// The Rust files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// ARCHITECTURE.md's table of modules with `unsafe` code is complete.
#[test]
fn unsafe_code_lives_where_the_architecture_says() {
    let text = read("ARCHITECTURE.md");
    let (_, section) = text.split_once("## Where `unsafe` lives").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("a section after it");
    let allowed: Vec<&str> =
        section.split('`').skip(1).step_by(2).filter(|code| code.contains('/')).collect();
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        sources(&entry.unwrap().path().join("src"), &mut files);
    }
    let (mut count, mut missing) = (0, Vec::new());
    for file in files {
        let source = fs::read_to_string(&file).unwrap();
        // A word of code: `unsafe` in comments and attributes is followed by something else.
        if !["unsafe {", "unsafe impl", "unsafe fn"].iter().any(|word| source.contains(word)) {
            continue;
        }
        let path = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        let path = path.strip_prefix("crates/").unwrap_or(&path);
        let is_listed =
            allowed.iter().any(|place| path == *place || place.ends_with('/') && path.starts_with(place));
        if !is_listed {
            missing.push(path.to_owned());
        }
        count += 1;
    }
    assert!(missing.is_empty(), "unsafe code, and not in the table of ARCHITECTURE.md: {missing:#?}");
    assert!(count > 10, "only {count} files with unsafe code found");
}

/// Every `farcall …` line of README's shell blocks starts with a command that exists.
#[test]
fn commands_of_the_readme_exist() {
    let readme = read("README.md");
    let lines = readme.lines().filter_map(|line| {
        line.strip_prefix("farcall ").or_else(|| line.strip_prefix("cargo run --release -- "))
    });
    let mut count = 0;
    for line in lines {
        let words: Vec<&str> =
            line.split_whitespace().take_while(|word| word.chars().all(|c| c.is_ascii_lowercase())).collect();
        let has_commands = matches!(words.first(), Some(&("kv" | "perf" | "rpc" | "verbs")));
        let depth = if has_commands { words.len().min(2) } else { 1 };
        let output =
            Command::new(env!("CARGO_BIN_EXE_farcall")).args(&words[..depth]).arg("--help").output().unwrap();
        assert!(output.status.success(), "README says: farcall {line}");
        count += 1;
    }
    assert!(count >= 8, "only {count} commands found: has the form of README changed?");
}
