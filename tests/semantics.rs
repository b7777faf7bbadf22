//! docs/semantics/ states guarantees, docs/THREATS.md the abilities of attackers. This test checks that every
//! statement names a test, and that the test exists.
//!
//! A guarantee is a list item with a number: `- **7.** Text.`. The table at the end of its page names its tests: `` |
//! 7 | `package::test_name` | ``, several separated by commas. In THREATS.md an item ends with its tests in brackets
//! instead: `` [`package::test_name`] ``. `package` is the directory of the package below its layer, or `cli` for the
//! root package.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A guarantee: its line, its text and its tests.
#[derive(Debug, PartialEq, Eq)]
struct Guarantee {
    line: usize,
    text: String,
    proofs: Vec<String>,
}

/// Returns the list items of a document with their lines.
fn items(document: &str) -> Vec<(usize, String)> {
    let mut items: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (at, line) in document.lines().enumerate() {
        if let Some(text) = line.strip_prefix("- ") {
            items.push((at + 1, text.to_owned()));
            is_open = true;
        } else if line.starts_with("  ") && is_open {
            let (_, text) = items.last_mut().expect("an open item");
            text.push(' ');
            text.push_str(line.trim());
        } else {
            is_open = false;
        }
    }
    items
}

/// Returns the guarantees of a document whose items end with their tests.
fn guarantees_with_brackets(document: &str) -> Vec<Guarantee> {
    items(document).into_iter().map(|(line, text)| split(line, &text)).collect()
}

/// Returns the guarantees of a page whose last table contains the tests. A row without an item, and a number that
/// occurs twice, become guarantees without a test.
fn guarantees_of_page(page: &str) -> Vec<Guarantee> {
    let (text, table) = page.rsplit_once("\n## Tests\n").unwrap_or((page, ""));
    let first_row = text.lines().count() + 2;
    let mut rows: Vec<(usize, String, &str)> = Vec::new();
    for (at, row) in table.lines().enumerate() {
        let Some((number, tests)) = row.strip_prefix("| ").and_then(|row| row.split_once(" | ")) else {
            continue;
        };
        if number.parse::<u32>().is_ok() {
            rows.push((first_row + at, number.to_owned(), tests.trim_end_matches(" |")));
        }
    }
    let mut guarantees = Vec::new();
    for (line, item) in items(text) {
        let number =
            item.strip_prefix("**").and_then(|item| item.split_once(".** ")).map(|(number, _)| number);
        let place = number.and_then(|number| rows.iter().position(|(_, of, _)| of == number));
        let proofs = place.map(|place| split(line, &format!("{item} [{}]", rows.remove(place).2)).proofs);
        guarantees.push(Guarantee { line, text: item, proofs: proofs.unwrap_or_default() });
    }
    let without_item = |(line, number, _): (usize, String, &str)| {
        let text = format!("row {number} of the table has no item of its own");
        Guarantee { line, text, proofs: Vec::new() }
    };
    guarantees.extend(rows.into_iter().map(without_item));
    guarantees
}

/// Splits an item into its text and its tests.
fn split(line: usize, item: &str) -> Guarantee {
    let inside = item.trim_end().strip_suffix(']').and_then(|item| item.rsplit_once(" ["));
    let proofs = inside.and_then(|(_, list)| {
        list.split(", ")
            .map(|name| name.strip_prefix('`')?.strip_suffix('`').map(str::to_owned))
            .collect::<Option<Vec<_>>>()
    });
    match (inside, proofs) {
        (Some((text, _)), Some(proofs)) => Guarantee { line, text: text.to_owned(), proofs },
        _ => Guarantee { line, text: item.to_owned(), proofs: Vec::new() },
    }
}

/// Collects the names of the test functions in the Rust files below `directory`.
fn tests_below(directory: &Path, found: &mut HashSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            tests_in(&fs::read_to_string(&path).unwrap(), found);
        }
    }
}

/// Collects the functions of a source text that an attribute marks as tests, directly or inside `proptest!`.
fn tests_in(source: &str, found: &mut HashSet<String>) {
    let mut is_marked = false;
    for line in source.lines().map(str::trim) {
        let is_marker = ["#[test]", "#[tokio::test"].iter().any(|marker| line.starts_with(marker));
        let name = line
            .trim_start_matches("async ")
            .strip_prefix("fn ")
            .and_then(|rest| rest.split(['(', '<']).next());
        if is_marker {
            is_marked = true;
        } else if let Some(name) = name {
            if std::mem::take(&mut is_marked) {
                found.insert(name.to_owned());
            }
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            is_marked = false;
        }
    }
}

/// Returns the tests of every package, by the name of its directory.
fn all_tests() -> HashMap<String, HashSet<String>> {
    let mut all = HashMap::new();
    let mut of_root = HashSet::new();
    tests_below(&root().join("src"), &mut of_root);
    tests_below(&root().join("tests"), &mut of_root);
    all.insert("cli".to_owned(), of_root);
    // Tests that `.ci/run bindings` runs.
    for (name, file, marker) in [
        ("python", "bindings/python/tests/test_farcall.py", "def test_"),
        ("go", "bindings/go/farcall_test.go", "func Test"),
    ] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let (_, prefix) = marker.split_once(' ').unwrap();
        let names = text.split(marker).skip(1).filter_map(|rest| rest.split('(').next());
        all.insert(name.to_owned(), names.map(|rest| format!("{prefix}{rest}")).collect());
    }
    let layers = ["fabric", "runtime", "services", "memory", "dropin", "bindings", "lab"];
    let packages = layers.map(|folder| fs::read_dir(root().join(folder)).unwrap());
    for entry in packages.into_iter().flatten() {
        let path = entry.unwrap().path();
        let tests: &mut HashSet<String> =
            all.entry(path.file_name().unwrap().to_string_lossy().into_owned()).or_default();
        for part in ["src", "tests"].map(|part| path.join(part)) {
            if part.is_dir() {
                tests_below(&part, tests);
            }
        }
    }
    all
}

/// Returns the faults of guarantees, one line each.
fn faults(guarantees: Vec<Guarantee>, tests: &HashMap<String, HashSet<String>>) -> Vec<String> {
    let mut faults = Vec::new();
    for guarantee in guarantees {
        if guarantee.proofs.is_empty() {
            faults.push(format!("line {}: no test named: {}", guarantee.line, guarantee.text));
        }
        for proof in &guarantee.proofs {
            let exists = proof
                .split_once("::")
                .is_some_and(|(package, name)| tests.get(package).is_some_and(|tests| tests.contains(name)));
            if !exists {
                faults.push(format!("line {}: no such test: {proof}", guarantee.line));
            }
        }
    }
    faults
}

#[test]
fn every_sentence_has_a_test() {
    let tests = all_tests();
    let docs = root().join("docs");
    let threats = guarantees_with_brackets(&fs::read_to_string(docs.join("THREATS.md")).unwrap());
    let mut documents = vec![("docs/THREATS.md".to_owned(), threats)];
    for entry in fs::read_dir(docs.join("semantics")).unwrap() {
        let path = entry.unwrap().path();
        let page = fs::read_to_string(&path).unwrap();
        documents.push((path.display().to_string(), guarantees_of_page(&page)));
    }
    let count: usize = documents.iter().map(|(_, guarantees)| guarantees.len()).sum();
    assert!(count > 500, "only {count} sentences found: has the form of the pages changed?");
    for (name, guarantees) in documents {
        assert!(guarantees.len() >= 3, "{name}: only {} sentences found", guarantees.len());
        let faults = faults(guarantees, &tests);
        assert!(faults.is_empty(), "{name}:\n{}", faults.join("\n"));
    }
}

#[test]
fn every_page_stands_in_the_index() {
    let index = fs::read_to_string(root().join("docs/SEMANTICS.md")).unwrap();
    for entry in fs::read_dir(root().join("docs/semantics")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(index.contains(&format!("](semantics/{name})")), "docs/SEMANTICS.md does not link to {name}");
    }
}

#[test]
fn guarantees_without_a_proof_are_found() {
    let tests = HashMap::from([("kv".to_owned(), HashSet::from(["proves".to_owned()]))]);
    let good = "# Title\n\nProse is free.\n\n- It holds,\n  always. [`kv::proves`]\n";
    assert_eq!(faults(guarantees_with_brackets(good), &tests), Vec::<String>::new());
    for bad in [
        "- It holds.\n",
        "- It holds. [`kv::gone`]\n",
        "- It holds. [`rpc::proves`]\n",
        "- It holds. [proves]\n",
        "- It holds. [`kv::proves`, `kv::gone`]\n",
    ] {
        assert_eq!(faults(guarantees_with_brackets(bad), &tests).len(), 1, "{bad}");
    }
    let page = |items: &str, rows: &str| {
        format!("# Title\n\n{items}\n## Tests\n\n| guarantee | tests |\n|---|---|\n{rows}")
    };
    let item = "- **1.** It holds,\n  always.\n";
    let good = page(item, "| 1 | `kv::proves` |\n");
    assert_eq!(faults(guarantees_of_page(&good), &tests), Vec::<String>::new());
    for (items, rows) in [
        (item, ""),
        (item, "| 2 | `kv::proves` |\n| 1 | `kv::proves` |\n"),
        (item, "| 1 | `kv::gone` |\n"),
        (item, "| 1 | proves |\n"),
        ("- It holds.\n", ""),
        ("- **1.** It holds.\n- **1.** It also holds.\n", "| 1 | `kv::proves` |\n"),
    ] {
        let page = page(items, rows);
        assert_eq!(faults(guarantees_of_page(&page), &tests).len(), 1, "{page}");
    }
    let mut found = HashSet::new();
    tests_in("#[test]\n#[should_panic]\nfn a() {}\nfn b() {}\n#[tokio::test]\nasync fn c() {}\n", &mut found);
    assert_eq!(found, HashSet::from(["a".to_owned(), "c".to_owned()]));
}
