//! `farcall devices`: lists RDMA devices and their capabilities.

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall::verbs::{
    Context, Device, DeviceAttr, GidEntry, LinkLayer, OpCaps, PortAttr, PortState, Provider, QpType,
};
use farcall::{Ibv, SoftNic};
use farcall_ibv::survey;
use farcall_verbs::with_sources;
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// List RDMA devices with their ports and capabilities.
///
/// Devices of the libibverbs of the system are listed if there are any. For a device that cannot be opened, the reason is
/// shown.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall devices\n  farcall devices --json | jq '.devices[].ports[].gids[].gid'"
)]
pub struct Devices {}

/// The devices found, as text and as JSON.
#[derive(Default)]
struct Listing {
    text: String,
    devices: Vec<Value>,
}

impl Devices {
    /// Opens and lists every device of every provider.
    ///
    /// # Errors
    /// If the result cannot be printed.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let mut listing = Listing::default();
        listing.add_devices_of(&SoftNic::new());
        listing.text.push_str(&format!("  {}\n", SoftNic::transports()));
        if !survey::kernel_devices().is_empty() {
            listing.add_devices_of(&Ibv::new());
        }
        console.print(&listing.text.trim_end(), &json!({ "devices": listing.devices }))?;
        Ok(Exit::Success)
    }
}

impl Listing {
    fn add_devices_of(&mut self, provider: &dyn Provider) {
        match provider.devices() {
            Ok(devices) => devices.iter().for_each(|device| self.add(device)),
            Err(error) => self.add_failure(provider.name(), provider.name(), &error),
        }
    }

    fn add(&mut self, device: &Arc<dyn Device>) {
        match describe(device) {
            Ok((text, value)) => {
                self.text.push_str(&text);
                self.devices.push(value);
            }
            Err(error) => self.add_failure(device.name(), device.provider(), &error),
        }
    }

    fn add_failure(&mut self, name: &str, provider: &str, error: &farcall::verbs::Error) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{name} (provider {provider}): cannot be used: {}", with_sources(&error));
        self.devices.push(json!({ "name": name, "provider": provider, "error": with_sources(&error) }));
    }
}

fn describe(device: &Arc<dyn Device>) -> farcall::verbs::Result<(String, Value)> {
    let context = device.open()?;
    let attr = context.query_device()?;
    let mut text = format!("{} (provider {}, version {})\n", device.name(), device.provider(), attr.fw_ver);
    let mut ports = Vec::new();
    for port_num in 1..=attr.phys_port_cnt {
        let (line, port) = describe_port(&*context, port_num)?;
        text.push_str(&line);
        ports.push(port);
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

fn describe_port(context: &dyn Context, port_num: u8) -> farcall::verbs::Result<(String, Value)> {
    let port = context.query_port(port_num)?;
    let table = context.query_gid_table(port_num)?;
    let chosen = context.choose_gid(port_num);
    let mtu_bytes = port.active_mtu.bytes();
    let mut text = format!("  port {port_num}: {}, {}, MTU {mtu_bytes}\n", state(&port), layer(&port));
    let _ = match &chosen {
        Ok(choice) => writeln!(text, "    {choice}"),
        Err(error) => writeln!(text, "    {}", with_sources(&error)),
    };
    let gid = |entry: &GidEntry| {
        json!({ "index": entry.index, "gid": entry.gid.to_string(), "type": entry.gid_type.to_string(),
            "netdev": entry.netdev })
    };
    let value = json!({ "port": port_num, "state": state(&port), "link_layer": layer(&port),
        "mtu_bytes": mtu_bytes, "lid": port.lid, "gids": table.iter().map(gid).collect::<Vec<_>>(),
        "chosen_gid_index": chosen.as_ref().ok().map(|choice| choice.entry.index),
        "chosen_because": chosen.map(|choice| choice.reason).ok() });
    Ok((text, value))
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
