//! The documents at the root: every link has a target, and README's commands exist.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const DOCUMENTS: [&str; 16] = [
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
    "docs/measured.md",
    "docs/rdma-in-ci.md",
    "docs/tour.md",
];

/// Directories of the packages; the package of the command line is the root.
const LAYERS: [&str; 7] = ["fabric", "runtime", "services", "memory", "dropin", "bindings", "lab"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(document: &str) -> String {
    fs::read_to_string(root().join(document)).unwrap_or_else(|error| panic!("{document}: {error}"))
}

/// Returns the documents, and the pages of docs/semantics.
fn documents() -> Vec<String> {
    let pages = fs::read_dir(root().join("docs/semantics")).unwrap();
    let pages = pages.map(|page| format!("docs/semantics/{}", page.unwrap().file_name().display()));
    DOCUMENTS.map(str::to_owned).into_iter().chain(pages).collect()
}

/// Returns the targets of a document's links.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// Returns the anchor of a heading, as Markdown renderers form it.
fn anchor(heading: &str) -> String {
    let kept =
        heading.trim_start_matches('#').trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn links_of_the_documents_lead_somewhere() {
    for document in documents() {
        let text = read(&document);
        let folder = root().join(&document).parent().map(Path::to_owned).unwrap();
        for target in links(&text).filter(|target| !target.starts_with("https://")) {
            let exists = match target.strip_prefix('#') {
                Some(wanted) => text.lines().any(|line| line.starts_with('#') && anchor(line) == wanted),
                None => folder.join(target.split('#').next().unwrap_or(target)).exists(),
            };
            assert!(exists, "{document} links to {target}, which does not exist");
        }
    }
}

/// Source files and modules that ARCHITECTURE.md names must exist.
#[test]
fn paths_in_the_architecture_exist() {
    let text = read("ARCHITECTURE.md");
    let is_path =
        |code: &&str| code.contains('/') && !code.contains([' ', '<']) && !code.starts_with("/dev/");
    // Code spans are the pieces with odd numbers between backticks.
    for path in text.split('`').skip(1).step_by(2).filter(is_path) {
        let exists = [""].iter().chain(&LAYERS).any(|folder| root().join(folder).join(path).exists());
        assert!(exists, "ARCHITECTURE.md names {path}, which does not exist");
    }
}

/// Collects the Rust files below a directory.
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

/// Collects the Rust files of the packages in these directories.
fn sources_of_packages(layers: &[&str], found: &mut Vec<PathBuf>) {
    for entry in layers.iter().flat_map(|layer| fs::read_dir(root().join(layer)).unwrap()) {
        let src = entry.unwrap().path().join("src");
        // The Go package has its sources in another directory.
        if src.is_dir() {
            sources(&src, found);
        }
    }
}

/// Libraries may be loaded by programs with more privileges than the user that started them. They read the environment
/// in one module, which takes that into account.
#[test]
fn libraries_read_the_environment_at_one_place() {
    let mut files = Vec::new();
    let (_lab, layers) = LAYERS.split_last().unwrap();
    sources_of_packages(layers, &mut files);
    let reads = |file: &&PathBuf| {
        let source = fs::read_to_string(file).unwrap();
        ["env::var", "getenv("].iter().any(|call| source.contains(call))
    };
    let found: Vec<&PathBuf> = files.iter().filter(reads).collect();
    assert_eq!(found, [&root().join("fabric/shm/src/environment.rs")]);
}

/// Every `farcall …` line in the shell blocks of README and the tour starts with an existing command.
#[test]
fn commands_of_readme_and_tour_exist() {
    let text = read("README.md") + &read("docs/tour.md");
    let lines = text.lines().filter_map(|line| {
        line.strip_prefix("farcall ").or_else(|| line.strip_prefix("cargo run --release -- "))
    });
    let mut count = 0;
    // A line of Cargo.toml is not a command.
    for line in lines.filter(|line| !line.starts_with('=')) {
        let words: Vec<&str> =
            line.split_whitespace().take_while(|word| word.chars().all(|c| c.is_ascii_lowercase())).collect();
        let depth = match words[..] {
            ["bench", "verbs", ..] => words.len().min(3),
            ["bench" | "figures" | "grpc" | "kv" | "memory" | "rpc" | "verbs", ..] => words.len().min(2),
            _ => 1,
        };
        let output =
            Command::new(env!("CARGO_BIN_EXE_farcall")).args(&words[..depth]).arg("--help").output().unwrap();
        assert!(output.status.success(), "README or the tour says: farcall {line}");
        count += 1;
    }
    assert!(count >= 8, "only {count} commands found: has the form of README or the tour changed?");
}

/// Returns the directories of the workspace's members, from the lowest layer up.
fn members() -> Vec<String> {
    let manifest: toml::Table = toml::from_str(&read("Cargo.toml")).unwrap();
    let members = manifest["workspace"]["members"].as_array().expect("a list of folders");
    members.iter().map(|folder| folder.as_str().expect("a folder").to_owned()).collect()
}

/// A package depends, except in tests, only on packages before it in the workspace's list.
#[test]
fn packages_depend_only_on_packages_below() {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&cargo.stdout)
        .unwrap_or_else(|error| panic!("cargo metadata: {error}: {cargo:?}"));
    let members = members();
    let place = |manifest: &str| {
        let folder = Path::new(manifest).parent().unwrap().strip_prefix(root()).unwrap().to_owned();
        // The root package is above all others.
        members.iter().position(|member| Path::new(member) == folder).unwrap_or(members.len())
    };
    let packages = metadata["packages"].as_array().expect("packages");
    assert_eq!(packages.len(), members.len() + 1, "a member, or the root, is missing");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let places: Vec<(String, usize)> = packages
        .iter()
        .map(|package| (text(&package["name"]), place(&text(&package["manifest_path"]))))
        .collect();
    let mut count = 0;
    for (package, (name, at)) in packages.iter().zip(&places) {
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let below = places.iter().find(|(name, _)| dependency["name"] == **name);
            let Some((below, below_at)) = below.filter(|_| dependency["kind"].is_null()) else { continue };
            assert!(below_at < at, "{name} depends on {below}, which the workspace's members name after it");
            count += 1;
        }
    }
    assert!(count > members.len(), "only {count} dependencies between packages found");
}

/// ARCHITECTURE.md's table of packages lists each package once, from the highest layer down.
#[test]
fn the_architecture_lists_each_package() {
    let text = read("ARCHITECTURE.md");
    let (_, table) = text.split_once("| layer | package |").expect("the table of packages");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let folders: Vec<&str> = rows
        .filter_map(|row| row.split_once("](")?.1.split_once("/src/"))
        .map(|(folder, _)| folder)
        .collect();
    let mut members = members();
    members.retain(|member| member != "fuzz");
    members.reverse();
    assert_eq!(folders, members);
}
