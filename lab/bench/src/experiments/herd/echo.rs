//! Throughput of ECHO with SEND/SEND, WRITE/WRITE and WRITE/SEND. The optimisations are added one by one: unreliable
//! transports, unsignalled requests, inlined payloads.

use super::HerdPlan;
use super::grid::{Grid, Row};
use crate::report::Column;
use crate::rnic::echo::{EchoTask, Leg};
use crate::rnic::{Inlining, Operation};
use farcall_link::Transport;

const LENS_BYTES: [usize; 1] = [32];

/// Operations of request and response, each with the transport that it uses once unreliable transports are enabled.
const KINDS: [(&str, Leg, Leg); 3] = [
    ("SEND / SEND", leg(Operation::Send, Transport::Ud), leg(Operation::Send, Transport::Ud)),
    ("WRITE / WRITE", leg(Operation::Write, Transport::Uc), leg(Operation::Write, Transport::Uc)),
    ("WRITE / SEND", leg(Operation::Write, Transport::Uc), leg(Operation::Send, Transport::Ud)),
];

const fn leg(operation: Operation, transport: Transport) -> Leg {
    Leg { operation, transport }
}

pub(super) fn grid(plan: &HerdPlan) -> Grid {
    let lens_bytes = plan.lens_bytes_or(&LENS_BYTES);
    let rows = lens_bytes.iter().flat_map(|len_bytes| KINDS.iter().map(|kind| (*len_bytes, kind)));
    let rows = rows.map(|(len_bytes, (name, request, response))| {
        let reliable = |leg: Leg| Leg { transport: Transport::Rc, ..leg };
        let basic = EchoTask {
            request: reliable(*request),
            response: reliable(*response),
            len_bytes,
            signal_every: 1,
            inlining: Inlining::UpTo(0),
            window: plan.window,
            connections: plan.connections,
            assumes_order: plan.assumes_order,
        };
        let unreliable = EchoTask { request: *request, response: *response, ..basic };
        let unsignalled = EchoTask { signal_every: plan.window, ..unreliable };
        let inlined = EchoTask { inlining: Inlining::Auto, ..unsignalled };
        let tasks = [basic, unreliable, unsignalled, inlined].map(Some);
        Row::new(vec![(*name).into(), (len_bytes as u64).into()], len_bytes, tasks)
    });
    Grid {
        title: "ECHO throughput in million echoes a second, each optimisation on top of those before",
        lead: vec![Column::new("kind", "request / response"), Column::new("len_bytes", "bytes")],
        columns: vec![
            Column::with_decimals("basic_mops", "basic (RC)", 2),
            Column::with_decimals("unreliable_mops", "+unreliable", 2),
            Column::with_decimals("unsignalled_mops", "+unsignalled", 2),
            Column::with_decimals("inlined_mops", "+inlined", 2),
        ],
        figure: |sample| sample.per_second / 1e6,
        rows: rows.collect(),
    }
}
