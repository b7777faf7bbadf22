//! Checks whether a measurement is possible, by the specification and by the capabilities of a device. A refusal names
//! the nearest measurement that is possible.

use super::operation::{ATOMIC_LEN_BYTES, Operation};
use super::task::{Inlining, RnicTask, RnicTest};
use farcall_link::Transport;
use farcall_verbs::{DeviceAttr, OpCaps, PortAttr};

/// A measurement that is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; nearest: {nearest}")]
pub struct Illegal {
    /// The requested measurement and the reason why it is not possible.
    pub what: String,
    /// The nearest measurement that is possible.
    pub nearest: String,
}

fn illegal(what: impl Into<String>, nearest: impl Into<String>) -> Result<(), Illegal> {
    Err(Illegal { what: what.into(), nearest: nearest.into() })
}

impl RnicTask {
    /// Checks the requirements that apply to every device.
    ///
    /// # Errors
    /// Returns an error if the specification or the measurement method does not allow the task.
    pub fn check(&self) -> Result<(), Illegal> {
        self.check_operation()?;
        self.check_length()?;
        self.check_queues()
    }

    fn check_operation(&self) -> Result<(), Illegal> {
        let Self { operation, transport, .. } = *self;
        if !operation.is_legal_over(transport) {
            let what = format!("the specification has no {operation} over {transport} (IBA table 38)");
            return illegal(what, nearest_operation(operation, transport));
        }
        if self.test == RnicTest::Completion && self.is_unreliable() {
            let what = format!("a completion over {transport} says that a message left, not that it arrived");
            return illegal(what, format!("a ping-pong, or {operation} over RC"));
        }
        if self.test == RnicTest::PingPong && operation.returns_data() {
            let what = format!("{operation} does not notify its target, which therefore cannot answer");
            return illegal(what, format!("{operation} until its completion"));
        }
        if self.test == RnicTest::PingPong && operation == Operation::Write && self.tuning.sleeps {
            return illegal(
                "a plain WRITE makes no event at its target",
                "WRITE_IMM with events, or WRITE by polling",
            );
        }
        if self.tuning.shares_receives && !operation.consumes_receive() {
            return illegal(format!("{operation} consumes no receive"), "SEND with a shared receive queue");
        }
        Ok(())
    }

    fn check_length(&self) -> Result<(), Illegal> {
        let Self { operation, len_bytes, .. } = *self;
        if operation.is_atomic() && len_bytes != ATOMIC_LEN_BYTES {
            let what = format!("{operation} works on {ATOMIC_LEN_BYTES} bytes, not on {len_bytes}");
            return illegal(what, format!("{ATOMIC_LEN_BYTES} bytes"));
        }
        if len_bytes == 0 {
            return illegal("a message without bytes shows nothing at its target", "1 byte");
        }
        Ok(())
    }

    fn check_queues(&self) -> Result<(), Illegal> {
        let tuning = self.tuning;
        if tuning.qps == 0 || tuning.active_qps == 0 || tuning.active_qps > tuning.qps {
            let what = format!("{} of {} queue pairs cannot be active", tuning.active_qps, tuning.qps);
            return illegal(what, format!("{} of {0}", tuning.qps.max(1)));
        }
        if self.is_latency() {
            return Ok(());
        }
        let (window, chain, every) = (tuning.window, tuning.chain, tuning.signal_every);
        if window == 0 || chain == 0 || every == 0 {
            return illegal("a window, chain or signalling interval of nothing never completes", "1");
        }
        if chain > window {
            return illegal(
                format!("a chain of {chain} does not fit a window of {window} outstanding requests"),
                format!("a chain of {window}"),
            );
        }
        if every > window {
            return illegal(
                format!(
                    "with one of {every} signalled, a window of {window} fills before anything completes"
                ),
                format!("a signalling interval of {window}"),
            );
        }
        if every % chain != 0 && chain % every != 0 {
            return illegal(
                format!("a signalling interval of {every} and chains of {chain} never come out even"),
                format!("an interval of {}", (every / chain).max(1) * chain),
            );
        }
        Ok(())
    }

    /// Checks the capabilities of a device. Callers run [`Self::check`] first.
    ///
    /// # Errors
    /// Returns an error if the device lacks a required capability.
    pub fn check_device(&self, device: &DeviceAttr, port: &PortAttr) -> Result<(), Illegal> {
        let Self { operation, transport, tuning, .. } = *self;
        let ops = device.ops(transport.qp_type());
        if !ops.contains(operation.caps()) {
            let what = format!("this device has no {operation} over {transport}");
            return illegal(what, offered(device, operation));
        }
        if tuning.shares_receives && !ops.contains(OpCaps::SRQ) {
            return illegal(
                format!("this device has no shared receive queues over {transport}"),
                "each queue pair's own",
            );
        }
        let mtu_bytes = port.active_mtu.bytes() as usize;
        if transport == Transport::Ud && self.len_bytes > mtu_bytes {
            let what = format!("a datagram of {} bytes exceeds the MTU of {mtu_bytes}", self.len_bytes);
            return illegal(what, format!("{mtu_bytes} bytes, or SEND over RC"));
        }
        if let Inlining::UpTo(bytes) = tuning.inlining
            && bytes > device.max_inline_data
        {
            let what =
                format!("this device inlines no more than {} bytes, not {bytes}", device.max_inline_data);
            return illegal(what, format!("{} bytes", device.max_inline_data));
        }
        for (name, asked, limit) in [
            ("queue pairs", tuning.qps, device.max_qp),
            ("outstanding requests on a queue pair", tuning.window, device.max_qp_wr.saturating_sub(1)),
        ] {
            if asked > limit {
                return illegal(format!("this device has no {asked} {name}"), limit.to_string());
            }
        }
        Ok(())
    }
}

fn nearest_operation(operation: Operation, transport: Transport) -> String {
    match (operation, transport) {
        (Operation::Write, Transport::Ud) => "SEND over UD, or WRITE over UC".to_owned(),
        (Operation::WriteImm, Transport::Ud) => "SEND_IMM over UD, or WRITE_IMM over UC".to_owned(),
        (operation, _) => format!("{operation} over RC"),
    }
}

/// Returns the transports of a device that support the operation, or else the operations that it supports.
fn offered(device: &DeviceAttr, operation: Operation) -> String {
    let with_operation: Vec<String> = Transport::ALL
        .into_iter()
        .filter(|transport| device.ops(transport.qp_type()).contains(operation.caps()))
        .map(|transport| format!("{operation} over {transport}"))
        .collect();
    if with_operation.is_empty() {
        "SEND, WRITE or READ over RC".to_owned()
    } else {
        with_operation.join(" or ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::task::Tuning;
    use super::*;

    fn task(operation: Operation, transport: Transport, test: RnicTest, tuning: Tuning) -> RnicTask {
        RnicTask { operation, transport, test, len_bytes: 8, tuning }
    }

    #[test]
    fn refusals_name_the_nearest() {
        use Operation::{FetchAdd, Read, Send, Write};
        use RnicTest::{Completion, PingPong, Throughput};
        use Transport::{Rc, Uc, Ud};
        let rate = Tuning::RATE;
        let cases = [
            (task(Read, Uc, Throughput, rate), "READ over RC"),
            (task(Write, Ud, Throughput, rate), "SEND over UD, or WRITE over UC"),
            (task(Send, Uc, Completion, Tuning::LATENCY), "a ping-pong, or SEND over RC"),
            (task(Read, Rc, PingPong, Tuning::LATENCY), "READ until its completion"),
            (task(Write, Rc, PingPong, Tuning { sleeps: true, ..Tuning::LATENCY }), "WRITE_IMM with events"),
            (task(Send, Rc, Throughput, Tuning { chain: 512, ..rate }), "a chain of 256"),
            (task(Send, Rc, Throughput, Tuning { signal_every: 512, ..rate }), "an interval of 256"),
            (task(Send, Rc, Throughput, Tuning { signal_every: 48, ..rate }), "an interval of 32"),
            (task(Send, Rc, Throughput, Tuning { active_qps: 2, ..rate }), "1 of 1"),
            (task(Send, Rc, Throughput, Tuning { window: 0, ..rate }), "nearest: 1"),
            (
                task(Write, Rc, Throughput, Tuning { shares_receives: true, ..rate }),
                "SEND with a shared receive queue",
            ),
            (RnicTask { len_bytes: 64, ..task(FetchAdd, Rc, Completion, Tuning::LATENCY) }, "8 bytes"),
            (RnicTask { len_bytes: 0, ..task(Send, Rc, Throughput, rate) }, "1 byte"),
        ];
        for (task, nearest) in cases {
            let refusal = task.check().expect_err(&task.to_string()).to_string();
            let nearest = nearest.replace("an interval of 256", "a signalling interval of 256");
            assert!(refusal.contains(&nearest), "{task}: {refusal}");
        }
        assert_eq!(task(Send, Ud, Throughput, rate).check(), Ok(()));
    }

    #[test]
    fn a_device_is_asked_for_what_it_has() {
        let mut device = DeviceAttr::new(0);
        device.rc = OpCaps::SEND | OpCaps::READ;
        device.ud = OpCaps::SEND;
        (device.max_qp, device.max_qp_wr, device.max_inline_data) = (10, 100, 64);
        let port = PortAttr {
            state: farcall_verbs::PortState::Active,
            max_mtu: farcall_verbs::Mtu::Mtu4096,
            active_mtu: farcall_verbs::Mtu::Mtu1024,
            gid_tbl_len: 1,
            lid: 0,
            link_layer: farcall_verbs::LinkLayer::Ethernet,
        };
        let send = task(Operation::Send, Transport::Ud, RnicTest::Throughput, Tuning::BANDWIDTH);
        assert_eq!(send.check_device(&device, &port), Ok(()));
        let refused = |task: RnicTask| task.check_device(&device, &port).unwrap_err().to_string();
        assert!(refused(RnicTask { len_bytes: 4096, ..send }).contains("1024 bytes"));
        assert!(
            refused(RnicTask { transport: Transport::Uc, ..send }).contains("SEND over RC or SEND over UD")
        );
        assert!(refused(RnicTask { operation: Operation::FetchAdd, ..send }).contains("over RC"));
        let with = |tuning| RnicTask { tuning, ..send };
        assert!(refused(with(Tuning { qps: 11, ..send.tuning })).contains("nearest: 10"));
        assert!(refused(with(Tuning { window: 101, ..send.tuning })).contains("nearest: 99"));
        assert!(refused(with(Tuning { inlining: Inlining::UpTo(65), ..send.tuning })).contains("64 bytes"));
        assert!(refused(with(Tuning { shares_receives: true, ..send.tuning })).contains("own"));
    }
}
