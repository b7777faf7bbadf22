//! `farcall devices`: which RDMA devices there are and what they can do.

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_softnic::SoftNic;
use farcall_verbs::{Device, DeviceAttr, LinkLayer, OpCaps, PortAttr, PortState, Provider, QpType};
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// List RDMA devices with their ports and capabilities.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall devices\n  farcall devices --json | jq '.devices[].ports[].gid'"
)]
pub struct Devices {}

impl Devices {
    /// Opens and lists every device of every provider.
    ///
    /// # Errors
    /// When a provider cannot list its devices, or one cannot be opened.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let (mut text, mut list) = (String::new(), Vec::new());
        let provider = SoftNic::new();
        let devices = provider.devices().map_err(|error| failed(provider.name(), &error))?;
        for device in &devices {
            let (lines, value) = describe(device).map_err(|error| failed(device.name(), &error))?;
            text.push_str(&lines);
            list.push(value);
        }
        text.push_str("softnic runs on this host only: it is inter-process communication, not a network");
        console.say(&text, &json!({ "devices": list }))?;
        Ok(Exit::Success)
    }
}

fn failed(place: &str, error: &farcall_verbs::Error) -> Failure {
    Failure::because("cannot query a device", error).at(place).remedy("see what is missing: farcall doctor")
}

fn describe(device: &Arc<dyn Device>) -> farcall_verbs::Result<(String, Value)> {
    let context = device.open()?;
    let attr = context.query_device()?;
    let mut text = format!("{} (provider {}, version {})\n", device.name(), device.provider(), attr.fw_ver);
    let mut ports = Vec::new();
    for port_num in 1..=attr.phys_port_cnt {
        let port = context.query_port(port_num)?;
        let gids: Vec<String> = (0..port.gid_tbl_len)
            .filter_map(|index| context.query_gid(port_num, index).ok())
            .map(|gid| gid.to_string())
            .collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  port {port_num}: {}, {}, MTU {}, GID {}",
            state(&port),
            layer(&port),
            port.active_mtu.bytes(),
            gids.join(", ")
        );
        ports.push(json!({ "port": port_num, "state": state(&port), "link_layer": layer(&port),
            "mtu_bytes": port.active_mtu.bytes(), "lid": port.lid, "gid": gids }));
    }
    for (name, qp_type) in [("RC", QpType::Rc), ("UC", QpType::Uc), ("UD", QpType::Ud)] {
        let operations = operations(attr.ops(qp_type));
        if !operations.is_empty() {
            let _ = writeln!(text, "  {name}: {}", operations.join(", "));
        }
    }
    let _ = writeln!(
        text,
        "  limits: {} queue pairs of {} requests with {} elements, {} B inline, {} regions, {} outstanding READs",
        attr.max_qp, attr.max_qp_wr, attr.max_sge, attr.max_inline_data, attr.max_mr, attr.max_qp_rd_atom
    );
    Ok((text, to_json(device, &attr, ports)))
}

fn to_json(device: &Arc<dyn Device>, attr: &DeviceAttr, ports: Vec<Value>) -> Value {
    json!({
        "name": device.name(), "provider": device.provider(), "version": attr.fw_ver,
        "node_guid": format!("{:016x}", attr.node_guid), "ports": ports,
        "operations": { "rc": operations(attr.rc), "uc": operations(attr.uc), "ud": operations(attr.ud) },
        "max_qp": attr.max_qp, "max_qp_wr": attr.max_qp_wr, "max_sge": attr.max_sge, "max_cq": attr.max_cq,
        "max_cqe": attr.max_cqe, "max_mr": attr.max_mr, "max_mr_size_bytes": attr.max_mr_size,
        "max_inline_data_bytes": attr.max_inline_data, "max_qp_rd_atom": attr.max_qp_rd_atom,
    })
}

fn operations(caps: OpCaps) -> Vec<&'static str> {
    caps.iter_names().map(|(name, _)| name).collect()
}

fn state(port: &PortAttr) -> &'static str {
    match port.state {
        PortState::Down => "down",
        PortState::Init => "initialising",
        PortState::Armed => "armed",
        PortState::Active => "active",
    }
}

fn layer(port: &PortAttr) -> &'static str {
    match port.link_layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
    }
}
