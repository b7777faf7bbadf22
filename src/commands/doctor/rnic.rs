//! RNICs: the devices of the kernel, access to them, and the choice of Farcall.

use super::check::Finding;
use farcall::Ibv;
use farcall::select::Selection;
use farcall::verbs::{PortChoice, Provider};
use farcall_ibv::survey::{self, KernelDevice, NodeState};
use farcall_verbs::with_sources;
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
        Err(_) if !is_needed => Finding::ok(NAME, "not installed; not needed, because there is no device"),
        Err(error) => Finding::warn(
            NAME,
            error,
            "the kernel has an RDMA device, which cannot be used without the library",
            survey::install_library(),
        ),
    }
}

fn no_device() -> Finding {
    const NAME: &str = "RNIC";
    let remedy = if Path::new("/sys/module/ib_core").exists() { survey::NO_DEVICES } else { "" };
    if remedy.is_empty() {
        return Finding::ok(NAME, "none; the software RNIC connects processes of this host");
    }
    Finding::warn(
        NAME,
        "none, although the RDMA core of the kernel is loaded",
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
            "its queue pairs can only be connected by the RDMA connection manager, which Farcall does not use",
            "use a RoCE or InfiniBand device, or rxe (rdma link add rxe0 type rxe netdev DEV)",
        );
    }
    match device.node_state() {
        NodeState::Missing => Finding::warn(
            NAME,
            with_name("no node in /dev/infiniband"),
            "programs cannot open the device",
            &format!("modprobe ib_uverbs; {IN_A_CONTAINER}"),
        ),
        NodeState::Forbidden => Finding::warn(
            NAME,
            with_name("this user has no permission to open its node in /dev/infiniband"),
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
    const REMEDY: &str = "list its ports and GIDs: farcall devices";
    let tried = Ibv::new().device(name).devices().and_then(|devices| {
        let context = devices.first().map(|device| device.open()).transpose()?;
        context.map(|context| PortChoice::automatic(&*context)).transpose()
    });
    match tried {
        Ok(Some(port)) => Finding::ok(NAME, format!("{name}: {port}")),
        Ok(None) => Finding::warn(NAME, format!("{name}: removed"), "it existed before this check", REMEDY),
        Err(error) => {
            Finding::warn(NAME, format!("{name}: {}", with_sources(&error)), "it cannot be used", REMEDY)
        }
    }
}

/// Reports the default provider.
fn choice() -> Finding {
    const NAME: &str = "provider";
    match Selection::default().open() {
        Ok(selected) => Finding::ok(NAME, selected.explanation),
        Err(error) => {
            Finding::fail(NAME, with_sources(&error), "no command can use RDMA", "see the checks above")
        }
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
    fn names_the_obstacle_and_remedy_of_a_device() {
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
    fn reports_the_chosen_provider_last() {
        let text = check().last().map(ToString::to_string).unwrap();
        assert!(text.contains("softnic"), "{text}");
    }
}
