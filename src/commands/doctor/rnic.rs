//! RNICs: the devices of the kernel, access to them, and the choice of Farcall.

use super::check::Finding;
use farcall::Ibv;
use farcall::select::Selection;
use farcall::verbs::{PortChoice, Provider};
use farcall_ibv::survey::{self, KernelDevice, NodeState};
use std::path::Path;

const IN_A_CONTAINER: &str =
    "in a container: docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1";

pub fn check() -> Vec<Finding> {
    let devices = survey::kernel_devices();
    let mut findings = vec![library(!devices.is_empty())];
    if devices.is_empty() {
        findings.push(no_device());
    }
    findings.extend(devices.iter().map(device));
    findings.push(choice());
    findings
}

fn library(is_needed: bool) -> Finding {
    const NAME: &str = "libibverbs";
    match survey::library() {
        Ok(file) => Finding::ok(NAME, file),
        Err(_) if !is_needed => Finding::ok(NAME, "not installed, and nothing here needs it"),
        Err(error) => Finding::warn(
            NAME,
            error,
            "the kernel has an RDMA device, which programs cannot use without the library",
            survey::install_library(),
        ),
    }
}

fn no_device() -> Finding {
    const NAME: &str = "RNIC";
    let remedy = if Path::new("/sys/module/ib_core").exists() { survey::NO_DEVICES } else { "" };
    if remedy.is_empty() {
        return Finding::ok(NAME, "none; between processes of this host the software RNIC needs none");
    }
    Finding::warn(
        NAME,
        "none, although the kernel's RDMA core is loaded",
        "only this host can be reached",
        remedy,
    )
}

fn device(device: &KernelDevice) -> Finding {
    // All findings have the same name; the text begins with the name of the device.
    const NAME: &str = "RNIC";
    let with_name = |what: &str| format!("{}: {what}", device.name);
    if device.is_iwarp {
        return Finding::warn(
            NAME,
            with_name("iWARP"),
            "its queue pairs can only be connected by the RDMA connection manager, which Farcall does not drive",
            "use a RoCE or InfiniBand device, or rxe (rdma link add rxe0 type rxe netdev DEV)",
        );
    }
    match device.node_state() {
        NodeState::Missing => Finding::warn(
            NAME,
            with_name("no node in /dev/infiniband"),
            "programs have no way to the device",
            &format!("modprobe ib_uverbs; {IN_A_CONTAINER}"),
        ),
        NodeState::Forbidden => Finding::warn(
            NAME,
            with_name("this user may not open its node in /dev/infiniband"),
            "only other users can use the device",
            &format!(
                "give read and write permission to /dev/infiniband/uverbs* (udev rule or group); {IN_A_CONTAINER}"
            ),
        ),
        NodeState::Usable => opened(&device.name),
    }
}

fn opened(name: &str) -> Finding {
    const NAME: &str = "RNIC";
    const REMEDY: &str = "farcall devices shows its ports and GIDs";
    let tried = Ibv::new().device(name).devices().and_then(|devices| {
        let context = devices.first().map(|device| device.open()).transpose()?;
        context.map(|context| PortChoice::automatic(&*context)).transpose()
    });
    match tried {
        Ok(Some(port)) => Finding::ok(NAME, format!("{name}: {port}")),
        Ok(None) => Finding::warn(NAME, format!("{name}: gone"), "it was there a moment ago", REMEDY),
        Err(error) => Finding::warn(NAME, format!("{name}: {error}"), "it cannot be used as it is", REMEDY),
    }
}

/// Reports the default provider.
fn choice() -> Finding {
    const NAME: &str = "provider";
    match Selection::default().choose() {
        Ok(chosen) => Finding::ok(NAME, chosen.explanation),
        Err(error) => Finding::fail(NAME, error.to_string(), "nothing can run", "see the checks above"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    fn kernel_device(node: Option<&str>) -> KernelDevice {
        KernelDevice {
            name: "mlx5_9".into(),
            has_active_port: true,
            is_iwarp: false,
            node: node.map(Into::into),
        }
    }

    #[test]
    fn what_hinders_a_device_is_named_with_its_remedy() {
        let text = device(&kernel_device(None)).to_string();
        assert!(
            text.contains("mlx5_9") && text.contains("modprobe ib_uverbs") && text.contains("docker run"),
            "{text}"
        );
        let text = device(&KernelDevice { is_iwarp: true, ..kernel_device(None) }).to_string();
        assert!(text.contains("connection manager") && text.contains("rxe"), "{text}");
        // A device node that can be opened, of a device that libibverbs does not have.
        let finding = device(&kernel_device(Some("/dev/null")));
        assert_eq!(finding.verdict, Verdict::Warn);
    }

    #[test]
    fn the_last_finding_says_what_is_used() {
        let text = check().last().map(ToString::to_string).unwrap();
        assert!(text.contains("softnic"), "{text}");
    }
}
