//! Selection of operations, transports, figures, sizes and tuning, converted to tasks that are possible.

use crate::rnic::{ATOMIC_LEN_BYTES, Illegal, Inlining, Operation, RnicTask, RnicTest, Survey, Tuning};
use farcall_link::Transport;

/// A kind of figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// One message at a time.
    Latency,
    /// Small messages, in chains.
    Rate,
    /// Large messages, a few outstanding.
    Bandwidth,
}

impl Figure {
    /// All figures.
    pub const ALL: [Self; 3] = [Self::Latency, Self::Rate, Self::Bandwidth];

    /// Returns the default sizes; 8 bytes is the size of UCX's put latency.
    fn lens_bytes(self) -> &'static [usize] {
        match self {
            Self::Latency => &[8, 64, 1024, 4096],
            Self::Rate => &[64],
            Self::Bandwidth => &[4096, 65_536, 1 << 20],
        }
    }
}

/// Values that replace those of the default [`Tuning`] of each figure; `None` retains the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Adjustments {
    /// Requests outstanding on each queue pair.
    pub window: Option<u32>,
    /// Requests posted with one doorbell.
    pub chain: Option<u32>,
    /// Number of requests of which one is signalled.
    pub signal_every: Option<u32>,
    /// Number of connected queue pairs.
    pub qps: Option<u32>,
    /// Number of queue pairs that carry messages.
    pub active_qps: Option<u32>,
    /// Which messages are inlined.
    pub inlining: Inlining,
    /// See [`Tuning::sleeps`].
    pub sleeps: bool,
    /// See [`Tuning::shares_receives`].
    pub shares_receives: bool,
    /// See [`Tuning::assumes_order`].
    pub assumes_order: bool,
}

impl Adjustments {
    /// Returns the default tuning with the specified values. The unspecified ones are adapted to them.
    pub fn apply(&self, figure: Figure) -> Tuning {
        let usual = match figure {
            Figure::Latency => Tuning::LATENCY,
            Figure::Rate => Tuning::RATE,
            Figure::Bandwidth => Tuning::BANDWIDTH,
        };
        let qps = self.qps.unwrap_or(usual.qps);
        let common = Tuning {
            inlining: self.inlining,
            sleeps: self.sleeps,
            shares_receives: self.shares_receives,
            assumes_order: self.assumes_order,
            qps,
            active_qps: self.active_qps.unwrap_or(qps),
            ..usual
        };
        if figure == Figure::Latency {
            return Tuning { signal_every: self.signal_every.unwrap_or(usual.signal_every).max(1), ..common };
        }
        let asked_at_least = self.chain.max(self.signal_every).unwrap_or(0);
        let window = self.window.unwrap_or(usual.window.max(asked_at_least));
        let chain = self.chain.unwrap_or(usual.chain.min(window).min(self.signal_every.unwrap_or(window)));
        let signal_every = self.signal_every.unwrap_or(chain);
        Tuning { window, chain, signal_every, ..common }
    }
}

/// Selection of measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Operations.
    pub operations: Vec<Operation>,
    /// Transports.
    pub transports: Vec<Transport>,
    /// Kinds of figures.
    pub figures: Vec<Figure>,
    /// Lengths of messages in bytes; if empty, the defaults of each figure.
    pub lens_bytes: Vec<usize>,
    /// Changes of the default tuning.
    pub adjustments: Adjustments,
}

/// Result of a selection on a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Picked {
    pub(super) tasks: Vec<RnicTask>,
    /// Selected measurements that are not possible, with the reasons.
    pub(super) left_out: Vec<Illegal>,
}

impl Selection {
    /// Returns the tasks that are possible on a device. Of several operations or transports, those that are not
    /// possible are left out; a single one that is not possible is an error.
    ///
    /// # Errors
    /// Returns an error if no selected measurement is possible.
    pub(super) fn pick(&self, survey: &Survey) -> Result<Picked, Illegal> {
        let is_single = self.operations.len() == 1 && self.transports.len() == 1;
        let mut picked = Picked::default();
        for figure in &self.figures {
            for (operation, transport) in self.combinations(is_single) {
                for len_bytes in self.lens_bytes(*figure, operation) {
                    let task = self.task(*figure, operation, transport, len_bytes);
                    task.check()?;
                    match task.check_device(&survey.attr, &survey.port.attr) {
                        Ok(()) => picked.tasks.push(task),
                        Err(refusal) if is_single && !self.is_usual_len(len_bytes) => return Err(refusal),
                        Err(refusal) if picked.left_out.contains(&refusal) => {}
                        Err(refusal) => picked.left_out.push(refusal),
                    }
                }
            }
        }
        match picked.left_out.first() {
            Some(refusal) if picked.tasks.is_empty() => Err(refusal.clone()),
            _ => Ok(picked),
        }
    }

    /// Returns whether a size was not specified but is one of the defaults.
    fn is_usual_len(&self, len_bytes: usize) -> bool {
        !self.lens_bytes.contains(&len_bytes)
    }

    /// Returns the selected combinations that the specification defines. If a shared receive queue is selected, these
    /// must consume receives, unless the combination is the only one.
    fn combinations(&self, is_single: bool) -> Vec<(Operation, Transport)> {
        let with_receives = self.adjustments.shares_receives;
        let operations = self.operations.iter().copied();
        operations
            .flat_map(|operation| self.transports.iter().map(move |transport| (operation, *transport)))
            .filter(|(operation, transport)| {
                let makes_sense =
                    operation.is_legal_over(*transport) && (!with_receives || operation.consumes_receive());
                is_single || makes_sense
            })
            .collect()
    }

    fn lens_bytes(&self, figure: Figure, operation: Operation) -> Vec<usize> {
        match (operation.is_atomic(), figure) {
            (true, Figure::Bandwidth) => Vec::new(),
            (true, _) => vec![ATOMIC_LEN_BYTES],
            (false, _) if self.lens_bytes.is_empty() => figure.lens_bytes().to_vec(),
            (false, _) => self.lens_bytes.clone(),
        }
    }

    fn task(&self, figure: Figure, operation: Operation, transport: Transport, len_bytes: usize) -> RnicTask {
        let latency = RnicTask::latency(operation, transport, len_bytes, self.adjustments.apply(figure));
        if figure == Figure::Latency { latency } else { RnicTask { test: RnicTest::Throughput, ..latency } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::{DeviceAttr, GidChoice, LinkLayer, Mtu, OpCaps, PortAttr, PortChoice, PortState};

    fn survey() -> Survey {
        let mut attr = DeviceAttr::new(0);
        attr.rc = OpCaps::all();
        attr.ud = OpCaps::SEND;
        (attr.max_qp, attr.max_qp_wr, attr.max_inline_data) = (100, 1024, 256);
        let gid_table = vec![farcall_verbs::GidEntry {
            index: 0,
            gid: farcall_verbs::Gid::default(),
            gid_type: farcall_verbs::GidType::RoceV2,
            netdev: None,
        }];
        Survey {
            device: "test".to_owned(),
            attr,
            port: PortChoice {
                port_num: 1,
                attr: PortAttr {
                    state: PortState::Active,
                    max_mtu: Mtu::Mtu4096,
                    active_mtu: Mtu::Mtu1024,
                    gid_tbl_len: 1,
                    lid: 0,
                    link_layer: LinkLayer::Ethernet,
                },
                gid: GidChoice::automatic(LinkLayer::Ethernet, gid_table).unwrap(),
            },
        }
    }

    fn selection(operations: &[Operation], transports: &[Transport], lens_bytes: &[usize]) -> Selection {
        Selection {
            operations: operations.to_vec(),
            transports: transports.to_vec(),
            figures: Figure::ALL.to_vec(),
            lens_bytes: lens_bytes.to_vec(),
            adjustments: Adjustments::default(),
        }
    }

    #[test]
    fn everything_is_what_the_device_has() {
        let picked = selection(&Operation::ALL, &Transport::ALL, &[]).pick(&survey()).unwrap();
        // Five operations with 4 + 1 + 3 sizes, two atomics with a latency and a rate; datagrams up to the MTU.
        assert_eq!(picked.tasks.iter().filter(|task| task.transport == Transport::Rc).count(), 5 * 8 + 2 * 2);
        let datagrams: Vec<usize> = picked
            .tasks
            .iter()
            .filter(|task| task.transport == Transport::Ud)
            .map(|task| task.len_bytes)
            .collect();
        assert_eq!(datagrams, [8, 64, 1024, 64]);
        let notes: String = picked.left_out.iter().map(Illegal::to_string).collect();
        assert!(notes.contains("no WRITE over UC") && notes.contains("no SEND_IMM over UD"), "{notes}");
        assert!(notes.contains("exceeds the MTU") && !notes.contains("READ"), "{notes}");
    }

    #[test]
    fn a_single_one_that_cannot_be_is_an_error() {
        let refused = |operation, transport, lens_bytes: &[usize]| {
            selection(&[operation], &[transport], lens_bytes).pick(&survey()).unwrap_err().to_string()
        };
        assert!(refused(Operation::Read, Transport::Ud, &[]).contains("READ over RC"));
        assert!(refused(Operation::Send, Transport::Uc, &[]).contains("no SEND over UC"));
        assert!(refused(Operation::Send, Transport::Ud, &[2048]).contains("1024 bytes"));
        let sizes = selection(&[Operation::Write], &[Transport::Rc], &[7]).pick(&survey()).unwrap().tasks;
        assert!(sizes.len() == 3 && sizes.iter().all(|task| task.len_bytes == 7));
    }

    #[test]
    fn what_is_not_asked_for_follows_what_is() {
        let with = |window, chain, signal_every, figure| {
            let tuning = Adjustments { window, chain, signal_every, ..Adjustments::default() }.apply(figure);
            (tuning.window, tuning.chain, tuning.signal_every)
        };
        assert_eq!(with(None, None, None, Figure::Rate), (256, 32, 32));
        assert_eq!(with(Some(16), None, None, Figure::Rate), (16, 16, 16));
        assert_eq!(with(None, Some(1), None, Figure::Rate), (256, 1, 1));
        assert_eq!(with(None, Some(16), None, Figure::Bandwidth), (16, 16, 16));
        assert_eq!(with(None, None, Some(64), Figure::Bandwidth), (64, 1, 64));
        assert_eq!(with(None, None, Some(8), Figure::Rate), (256, 8, 8));
        assert_eq!(with(Some(8), None, Some(7), Figure::Latency), (1, 1, 7));
    }
}
