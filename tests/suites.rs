//! Test suites of other projects on a mounted file system, without a time limit: POSIX by pjdfstest, a file server's
//! load by dbench, the file system stressors of stress-ng, and a repository that is cloned and compiled. A suite that
//! is not installed is skipped with a message.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

#[path = "support/mounted.rs"]
mod mounted;
use mounted::Mounted;

/// Runs a program and returns its output; `None`, with a message, if it is not installed.
fn run(dir: &Path, program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).current_dir(dir).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("SKIPPED: there is no {program}");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

fn assert_succeeded(what: &str, output: &Output) {
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{what}: {}\n{}{}", output.status, said[0], said[1]);
}

/// Configuration of pjdfstest: the features of Linux, and three users.
const POSIX: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["games", "games"]]
"#;

#[test]
#[ignore = "installs and takes minutes"]
fn posix_as_pjdfstest_has_it() {
    let Some(mounted) = Mounted::of_size("pjdfstest", 256) else { return };
    let file = mounted.dir.with_extension("toml");
    fs::write(&file, POSIX).unwrap();
    let arguments = ["-c", file.to_str().unwrap(), "-p", mounted.dir.to_str().unwrap()];
    if let Some(output) = run(&mounted.dir, "pjdfstest", &arguments) {
        assert_succeeded("pjdfstest", &output);
        let said = String::from_utf8_lossy(&output.stdout);
        let summary = said.lines().find(|line| line.starts_with("Summary: 0 failed")).unwrap();
        println!("{summary}");
        assert!(!summary.contains(" 0 passed"), "{summary}");
    }
    fs::remove_file(&file).unwrap();
    mounted.end();
}

#[test]
#[ignore = "takes half a minute"]
fn a_file_servers_load_by_dbench() {
    let Some(mounted) = Mounted::of_size("dbench", 512) else { return };
    if let Some(output) = run(&mounted.dir, "dbench", &["-D", ".", "-t", "20", "4"]) {
        assert_succeeded("dbench", &output);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("Throughput") && !said.contains("failed"), "{said}");
    }
    mounted.end();
}

/// Stressors of the file system that check their results.
const STRESSORS: &str = "access chdir chmod chown copy-file dentry dir dirdeep dirmany dup fallocate fcntl fiemap \
                         filename flock fpunch fsize getdent handle hdd io iomix lease link locka lockf lockofd open \
                         readahead rename seek sendfile symlink sync-file touch utime xattr";

#[test]
#[ignore = "takes minutes"]
fn the_stressors_of_stress_ng_find_nothing() {
    let Some(mounted) = Mounted::of_size("stress", 1024) else { return };
    for stressor in STRESSORS.split_whitespace() {
        let which = format!("--{stressor}");
        let arguments = [&which, "2", "--timeout", "2", "--verify", "--temp-path", "."];
        let Some(output) = run(&mounted.dir, "stress-ng", &arguments) else { break };
        assert_succeeded(stressor, &output);
    }
    assert_eq!(fs::read_dir(&mounted.dir).unwrap().count(), 0, "they clean up");
    mounted.end();
}

#[test]
#[ignore = "compiles"]
fn a_repository_is_cloned_and_compiled() {
    let Some(mounted) = Mounted::of_size("compile", 3072) else { return };
    let here = env!("CARGO_MANIFEST_DIR");
    let dir = &mounted.dir;
    assert_succeeded("clone", &run(dir, "git", &["clone", "--quiet", "--no-local", here, "clone"]).unwrap());
    let clone = dir.join("clone");
    assert_succeeded("fsck", &run(&clone, "git", &["fsck", "--full", "--strict"]).unwrap());
    let built = Command::new(env!("CARGO"))
        .current_dir(&clone)
        .args(["test", "--quiet", "-p", "farcall-wire", "--lib"])
        .env("CARGO_TARGET_DIR", dir.join("target"))
        .output();
    assert_succeeded("build", &built.unwrap());
    let status = run(&clone, "git", &["status", "--porcelain"]).unwrap();
    assert!(status.stdout.is_empty(), "{}", String::from_utf8_lossy(&status.stdout));
    mounted.end();
}
