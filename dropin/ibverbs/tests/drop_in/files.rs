//! Files that programs read in addition to the library, as seen by programs without RDMA.

use crate::support::{Folder, Running, words};

/// Returns the output of a shell script in an environment where the device has files.
fn shell(folder: &Folder, script: &str) -> String {
    let mut command = folder.preloaded("sh");
    command.args(["-ec", script]);
    let output = Running::start(command).finish();
    assert!(output.status.success(), "{script}: {}", words(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn programs_find_the_device_where_the_kernel_shows_devices() {
    let folder = Folder::new("files");
    assert_eq!(shell(&folder, "ls /sys/class/infiniband /sys/class/infiniband_verbs").lines().count(), 6);
    let ports = "/sys/class/infiniband/softnic0/ports/1";
    assert_eq!(shell(&folder, &format!("cat {ports}/link_layer {ports}/state")), "Ethernet\n4: ACTIVE\n");
    assert_eq!(
        shell(&folder, &format!("cat {ports}/gid_attrs/types/0 {ports}/gid_attrs/ndevs/0")),
        "RoCE v2\nlo\n"
    );
    assert_eq!(shell(&folder, "cat /sys/class/infiniband_verbs/uverbs0/ibdev"), "softnic0\n");
    // Links are resolved to the kernel's paths, which can be followed.
    let whole = shell(&folder, "readlink -f /sys/class/infiniband/softnic0");
    assert_eq!(whole, "/sys/devices/virtual/infiniband/softnic0\n");
    assert_eq!(shell(&folder, &format!("cat {}/node_type", whole.trim())), "1: CA\n");
    // UCX makes exactly this check.
    shell(
        &folder,
        "test -c /dev/infiniband/uverbs0 -a -r /dev/infiniband/uverbs0 -a -w /dev/infiniband/uverbs0",
    );
}

#[test]
fn the_files_and_the_library_say_the_same() {
    if !crate::support::has("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let folder = Folder::new("files-same");
    let shown = shell(&folder, "ibv_devinfo -v");
    let said = |line: &str| {
        let found = shown.lines().find(|shown| shown.trim_start().starts_with(line));
        found
            .and_then(|line| line.split_whitespace().nth(1))
            .unwrap_or_else(|| panic!("no {line}"))
            .to_owned()
    };
    let device = "/sys/class/infiniband/softnic0";
    assert_eq!(shell(&folder, &format!("cat {device}/node_guid")).trim(), said("node_guid:"));
    assert_eq!(shell(&folder, &format!("cat {device}/fw_ver")).trim(), said("fw_ver:"));
    assert_eq!(shell(&folder, &format!("cat {device}/ports/1/cap_mask")).trim(), said("port_cap_flags:"));
    for index in 0..3 {
        let file =
            |name: &str| shell(&folder, &format!("cat {device}/ports/1/{name}/{index}")).trim().to_owned();
        let gid: std::net::Ipv6Addr = file("gids").parse().unwrap();
        assert!(shown.contains(&format!("{gid}, {}", file("gid_attrs/types"))), "no {gid} in: {shown}");
        shell(&folder, &format!("test -d /sys/class/net/{}", file("gid_attrs/ndevs")));
    }
}

/// A link that another user may have created: its target is not modified.
#[test]
fn avoids_a_device_directory_that_another_user_created() {
    let folder = Folder::new("files-squatted");
    let (session, strangers) = (folder.path("session"), folder.path("strangers"));
    for directory in [&session, &strangers] {
        std::fs::create_dir(directory).unwrap();
    }
    std::os::unix::fs::symlink(&strangers, format!("{session}/farcall")).unwrap();
    let script =
        format!("export XDG_RUNTIME_DIR={session}; exec cat /sys/class/infiniband/softnic0/node_type");
    assert_eq!(shell(&folder, &script), "1: CA\n");
    assert_eq!(std::fs::read_dir(&strangers).unwrap().count(), 0);
}

/// Programs filter by names.
#[test]
fn the_device_has_the_name_that_its_user_gives_it() {
    if !crate::support::has("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let folder = Folder::new("files-name");
    let script = "ls /sys/class/infiniband; cat /sys/class/infiniband_verbs/uverbs0/ibdev; \
                  ibv_devinfo -d rxe0 | grep hca_id; cat /sys/class/infiniband/rxe0/node_type";
    let said = shell(&folder, &format!("export FARCALL_DEVICE=rxe0; {script}"));
    assert_eq!(said, "rxe0\nrxe0\nhca_id:\trxe0\n1: CA\n");
    let mut command = folder.program("ibv_devinfo");
    command.env("FARCALL_DEVICE", "a/b");
    let output = Running::start(command).finish();
    assert!(!output.status.success() && words(&output).contains("FARCALL_DEVICE"), "{}", words(&output));
}

#[test]
fn other_files_are_what_they_were() {
    let folder = Folder::new("files-others");
    let script = "cat /proc/version; ls /sys/class/net; readlink -f /sys/class/net; ls -d /dev/null; \
                  ls /sys/class/infiniband_mad /sys/class/infiniband/../net /dev/infinibands 2>&1 || true";
    let mut command = std::process::Command::new("sh");
    let without = Running::start({
        command.args(["-ec", script]);
        command
    })
    .finish();
    assert_eq!(shell(&folder, script), words(&without));
    // A child of a child finds the files as well; a program that only loads the library does not.
    assert_eq!(shell(&folder, "sh -c 'sh -c \"cat /sys/class/infiniband/softnic0/node_type\"'"), "1: CA\n");
    let mut unloaded = folder.program("ls");
    unloaded.arg("/sys/class/infiniband/softnic0");
    assert!(!Running::start(unloaded).finish().status.success());
}
