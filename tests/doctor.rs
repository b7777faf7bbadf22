//! `farcall doctor` on this machine, in a container, and with settings that cannot work.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

const FARCALL: &str = env!("CARGO_BIN_EXE_farcall");

fn ended(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// Returns a check of a report by its name.
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap_or_else(|| panic!("no checks: {report}"));
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name}: {report}"))
}

fn text<'a>(check: &'a Value, key: &str) -> &'a str {
    check[key].as_str().unwrap()
}

fn report(variables: &[(&str, &str)]) -> (Output, Value) {
    let mut command = Command::new(FARCALL);
    command.args(["doctor", "--json"]).env_remove("FARCALL_GROUP").env_remove("FARCALL_SOCKET_DIR");
    let output = ended({
        command.envs(variables.iter().copied());
        command
    });
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    (output, report)
}

#[test]
fn reports_a_remedy_per_obstacle_and_what_is_in_use() {
    let (_, here) = report(&[]);
    for found in here["checks"].as_array().unwrap() {
        let is_ok = found["verdict"] == "ok";
        assert!(is_ok != (text(found, "remedy").len() > 3), "{found}");
    }
    assert!(text(check(&here, "provider"), "found").starts_with("softnic: "), "{here}");
    assert!(!text(check(&here, "counters"), "found").is_empty());
    // If the libraries have not been built, there is a remedy instead.
    let programs = check(&here, "RDMA programs");
    assert!(
        text(programs, "found").contains("softnic0")
            || text(programs, "remedy").contains("packaging/build.sh"),
        "{programs}"
    );
}

#[test]
fn settings_that_cannot_work_are_failures() {
    for (variable, value, name) in [
        ("FARCALL_GROUP", "no such group", "admitted users"),
        ("FARCALL_SOCKET_DIR", "/no/such/folder", "rendezvous"),
    ] {
        let (output, report) = report(&[(variable, value)]);
        assert_eq!(output.status.code(), Some(1), "{variable}");
        let found = check(&report, name);
        assert_eq!(found["verdict"], "fail", "{found}");
        assert!(text(found, "remedy").contains(variable), "{found}");
    }
}

/// Without a shared directory there is a warning in a container; with one, the report names the rendezvous directory.
#[test]
fn reports_the_rendezvous_of_a_container() {
    let contained = |directory: Option<&str>| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--ipc", "--mount", "--mount-proc"]);
        command.env_remove("FARCALL_SOCKET_DIR").envs(directory.map(|place| ("FARCALL_SOCKET_DIR", place)));
        command
    };
    let mut probe = contained(None);
    probe.arg("true");
    if !probe.output().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no user namespaces here");
        return;
    }
    let folder = std::env::temp_dir();
    for directory in [None, folder.to_str()] {
        let output = ended({
            let mut command = contained(directory);
            command.args([FARCALL, "doctor", "--json"]);
            command
        });
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        assert_eq!(report["failures"], 0, "{report}");
        let container = check(&report, "container");
        assert!(text(container, "found").contains("its own pid namespace"), "{container}");
        let (verdict, rendezvous) = match directory {
            None => ("warn", "all processes of this user"),
            Some(place) => ("ok", place),
        };
        assert_eq!(container["verdict"], verdict, "{container}");
        assert!(text(check(&report, "rendezvous"), "found").contains(rendezvous), "{report}");
    }
}
