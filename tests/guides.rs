//! The guides are correct: their commands run as printed, and their Rust code is that of examples, which other tests
//! run.
#![cfg(feature = "full")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn guides() -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join("docs/guide")).unwrap();
    let mut guides: Vec<(String, String)> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&path).unwrap())
        })
        .collect();
    guides.sort();
    guides
}

/// Returns the code blocks of a page with their language.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let fenced = page.split("\n```").skip(1).step_by(2);
    fenced.map(|block| block.split_once('\n').expect("a block has lines")).collect()
}

/// Runs a page's commands in one shell, with ports of their own. Returns their standard output.
fn run(name: &str, script: &str) -> String {
    let folder = std::env::temp_dir().join(format!("farcall-guide-{}-{name}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_farcall")).parent().unwrap();
    let path = std::env::join_paths(
        std::iter::once(programs.to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    );
    // A network namespace of its own, so that the default ports are free. Remaining processes end with the shell.
    let script = format!(
        "ip link set lo up\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait || true' EXIT\nset -eo pipefail\n{script}"
    );
    let output = Command::new("unshare")
        .args(["--map-root-user", "--net", "bash", "-c", &script])
        .current_dir(&folder)
        .env("PATH", path.unwrap())
        .env("HOME", &folder)
        .env_remove("XDG_CACHE_HOME")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns whether a shell can create a network namespace here.
fn has_networks() -> bool {
    let tried = Command::new("unshare")
        .args(["--map-root-user", "--net", "ip", "link", "set", "lo", "up"])
        .stderr(Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success())
}

#[test]
fn commands_of_the_guides_run_and_print_what_the_guides_show() {
    if !has_networks() {
        eprintln!("SKIPPED: unshare and ip cannot give a shell a network of its own here");
        return;
    }
    let mut pages = 0;
    for (name, page) in guides() {
        let blocks = blocks(&page);
        let of = |language: &str| -> Vec<&str> {
            blocks.iter().filter(|block| block.0 == language).map(|block| block.1).collect()
        };
        let script = of("sh");
        if script.is_empty() {
            continue;
        }
        let printed = run(&name, &script.join("\n"));
        let mut rest = printed.as_str();
        for line in of("text").iter().flat_map(|text| text.lines()) {
            let at = rest
                .find(line)
                .unwrap_or_else(|| panic!("{name} shows {line:?}, and not after it: {printed}"));
            rest = &rest[at + line.len()..];
        }
        pages += 1;
    }
    assert!(pages >= 2, "only {pages} pages with commands found");
}

#[test]
fn programs_of_the_guides_are_examples() {
    let examples: Vec<String> = fs::read_dir(root().join("bindings/farcall/examples"))
        .unwrap()
        .filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok())
        .collect();
    let mut programs = 0;
    for (name, page) in guides() {
        for (_, program) in blocks(&page).iter().filter(|block| block.0 == "rust") {
            let program = program.trim_end();
            let is_shown = examples.iter().any(|example| example.contains(program));
            assert!(
                is_shown,
                "{name} shows Rust that no example in bindings/farcall/examples has:\n{program}"
            );
            programs += 1;
        }
    }
    assert!(programs >= 1, "no program found");
}
