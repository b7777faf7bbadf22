//! Support for tests with two ends on two hosts: each test runs again in two connected network namespaces
//! (`.ci/networks`), which share no directory of the software RNIC either. Tests of other packages include this file,
//! too.

use std::process::Command;

/// Address of the server's end.
pub const SERVER: &str = "10.99.0.2:7411";
const END: &str = "FARCALL_TEST_END";

/// Line that the server's end prints when it listens.
const READY: &str = "the server listens";

/// Script that runs both ends; the output of both is shown on failure.
const SCRIPT: &str = r#"set -e
    mkdir -m 700 /run/a /run/b
    end() { ip netns exec "$1" env FARCALL_TEST_END="$2" FARCALL_SOCKET_DIR="/run/$3" "$0" --exact "$TEST" --nocapture; }
    end "$NETWORK_B" server b > /run/said 2>&1 &
    server=$!
    until grep -q "the server listens" /run/said; do kill -0 $server || { cat /run/said; exit 1; }; sleep 0.02; done
    end "$NETWORK_A" client a || { cat /run/said; exit 1; }
    wait $server || { cat /run/said; exit 1; }
    cat /run/said"#;

/// Role of this process.
pub enum End {
    Server,
    Client,
}

/// Runs a test of this file again as both ends, with additional environment variables. Returns the role if this
/// process is one of the ends.
pub fn end_of(test: &str, environment: &[(&str, &str)]) -> Option<End> {
    match std::env::var(END) {
        Ok(end) if end == "server" => return Some(End::Server),
        Ok(_) => return Some(End::Client),
        Err(_) => {}
    }
    let between = |script: &str| {
        let mut command = Command::new("unshare");
        command.args([
            "--user",
            "--map-root-user",
            "--mount",
            "--net",
            "--pid",
            "--kill-child",
            "--mount-proc",
        ]);
        command.args(["sh", "-c", "mount -t tmpfs none /run && exec bash \"$@\"", "sh"]);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.ci/networks"));
        // A test that hangs must fail.
        command.args(["timeout", "120", "bash", "-c", script]).arg(std::env::current_exe().unwrap());
        command.env("TEST", test).envs(environment.iter().copied());
        command.output().unwrap()
    };
    let tried = between("exit 0");
    if !tried.status.success() {
        eprintln!("SKIPPED: no two networks here: {}", String::from_utf8_lossy(&tried.stderr).trim());
        return None;
    }
    let output = between(SCRIPT);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.matches("1 passed").count(), 2, "{said}");
    print!("{said}");
    None
}

/// Must be called by the server's end when it listens.
pub fn listens() {
    println!("{READY}");
}
