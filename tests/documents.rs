//! The documents at the root: every link leads somewhere, and README's commands exist.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const DOCUMENTS: [&str; 14] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/SEMANTICS.md",
    "docs/THREATS.md",
    "docs/c-and-python.md",
    "docs/guide/README.md",
    "docs/guide/a-service.md",
    "docs/guide/an-embedded-store.md",
    "docs/guide/choosing-a-preset.md",
    "docs/guide/operating-a-server.md",
    "docs/guide/verbs-under-tokio.md",
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
        let exists =
            ["", "crates", "dropin", "tools"].iter().any(|folder| root().join(folder).join(path).exists());
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
    for entry in
        ["crates", "dropin", "tools"].iter().flat_map(|folder| fs::read_dir(root().join(folder)).unwrap())
    {
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
        let path = ["crates/", "dropin/", "tools/"]
            .iter()
            .find_map(|folder| path.strip_prefix(folder))
            .unwrap_or(&path);
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

/// Libraries are loaded by programs that may have more rights than who started them: they read the environment at one
/// place, which knows that.
#[test]
fn libraries_read_the_environment_at_one_place() {
    let mut files = Vec::new();
    for folder in ["crates", "dropin"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            sources(&entry.unwrap().path().join("src"), &mut files);
        }
    }
    let reads = |file: &&PathBuf| {
        let source = fs::read_to_string(file).unwrap();
        ["env::var", "getenv("].iter().any(|call| source.contains(call))
    };
    let found: Vec<&PathBuf> = files.iter().filter(reads).collect();
    assert_eq!(found, [&root().join("crates/shm/src/environment.rs")]);
}

/// Every `farcall …` line of README's shell blocks starts with a command that exists.
#[test]
fn commands_of_the_readme_exist() {
    let readme = read("README.md");
    let lines = readme.lines().filter_map(|line| {
        line.strip_prefix("farcall ").or_else(|| line.strip_prefix("cargo run --release -- "))
    });
    let mut count = 0;
    // A line of Cargo.toml is none.
    for line in lines.filter(|line| !line.starts_with('=')) {
        let words: Vec<&str> =
            line.split_whitespace().take_while(|word| word.chars().all(|c| c.is_ascii_lowercase())).collect();
        let has_commands =
            matches!(words.first(), Some(&("figures" | "grpc" | "kv" | "perf" | "rpc" | "stream" | "verbs")));
        let depth = if has_commands { words.len().min(2) } else { 1 };
        let output =
            Command::new(env!("CARGO_BIN_EXE_farcall")).args(&words[..depth]).arg("--help").output().unwrap();
        assert!(output.status.success(), "README says: farcall {line}");
        count += 1;
    }
    assert!(count >= 8, "only {count} commands found: has the form of README changed?");
}

/// The packages of ARCHITECTURE.md's table of floors, from the top down: the name of the folder, and the manifest.
fn rows_of_floors() -> Vec<(String, PathBuf)> {
    let text = read("ARCHITECTURE.md");
    let (_, table) = text.split_once("| floor | package |").expect("the table of floors");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let name = row.split('`').nth(1).expect("a name").to_owned();
        let manifest = match row.split_once("](").and_then(|(_, rest)| rest.split_once("/src/")) {
            Some((folder, _)) => root().join(folder).join("Cargo.toml"),
            None => root().join("Cargo.toml"),
        };
        (name, manifest)
    })
    .collect()
}

/// The packages of this workspace that a manifest depends on outside of its tests, by their folders' names.
fn imports(manifest: &str) -> Vec<String> {
    let mut is_inside = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_inside = line == "[dependencies]";
        } else if is_inside && line.starts_with("farcall") {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            found.push(name.strip_prefix("farcall-").unwrap_or(name).to_owned());
        }
    }
    found
}

/// A package imports only from rows below its own, and every package has a row.
#[test]
fn packages_import_from_the_floors_below() {
    let rows = rows_of_floors();
    let mut packages = 1;
    for folder in ["crates", "dropin", "tools"] {
        packages += fs::read_dir(root().join(folder)).unwrap().count();
    }
    assert_eq!(rows.len(), packages, "every package has one row in ARCHITECTURE.md's table of floors");
    for (at, (name, manifest)) in rows.iter().enumerate() {
        let below: Vec<&str> = rows[at + 1..].iter().map(|(name, _)| name.as_str()).collect();
        for import in imports(&fs::read_to_string(manifest).unwrap()) {
            assert!(
                below.contains(&import.as_str()),
                "{name} imports {import}, which does not stand below it"
            );
        }
    }
    let manifest = "[dependencies]\nfarcall-rpc.workspace = true\nfarcall = { x = 1 }\n[dev-dependencies]\nfarcall-kv = 1\n";
    assert_eq!(imports(manifest), ["rpc", "farcall"]);
}
