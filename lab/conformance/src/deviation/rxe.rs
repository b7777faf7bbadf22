//! Deviations of the Linux kernel's software RNIC, as observed on 6.1.

use super::Deviation;

const NO_EVENT: &str = "the target raises no asynchronous event; the completion tells the initiator, the queue pair's state \
                        the target";
const RECEIVE_FAILS: &str =
    "the receive that the refused request has consumed ends in REM_ACCESS_ERR, instead of LOC_ACCESS_ERR";
const UNKNOWN_KEY: &str = "a key that names no region of the domain ends in LOC_QP_OP_ERR";
const RECEIVE_ANY_FAULT: &str = "a receive whose element does not allow the access ends in LOC_QP_OP_ERR";
const LONG_RESULT: &str =
    "an atomic whose elements hold more than its result is executed; the result comes first";
const NO_SQE: &str = "a failed send takes an unreliable queue pair to ERR, not to SQE";
const IGNORES_INLINE: &str = "the flag is ignored where there is nothing to inline";
const NO_RESET_TO_ERR: &str = "the kernel's table of transitions has no RESET to ERR";
const FLUSHES_ONCE: &str = "receives posted to a queue pair in error stay: posting them does not enter the kernel, which \
                            flushed when the pair went to error";

const UNCHECKED: &str =
    "posting checks neither operation nor transport; such a request does nothing or fails later";
const OPERATION_ERR: &str = "a message longer than its receive ends in REM_OP_ERR";
const OVER_THE_MTU: &str = "a datagram over the MTU is taken, and never arrives";
const NO_SOLICITED_FAILURE: &str =
    "a completion queue armed for solicited completions gets no event for failures";
const STAYS_IN_SQD: &str =
    "sends posted in SQD do not start when the pair returns to RTS, until another one is posted";
const PLAIN_QKEY: &str = "a controlled Q_Key (its highest bit set) is sent as it is";
const NO_LAST_RECEIVE: &str = "QP_LAST_WQE_REACHED is not raised";

const fn known(pattern: &'static str, saying: &'static str, reason: &'static str) -> Deviation {
    Deviation { pattern, saying, reason }
}

pub(super) const RXE: &[Deviation] = &[
    known("rc/write-imm/remote-access/no-permission-of-region", "REM_ACCESS_ERR(10)", RECEIVE_FAILS),
    known("rc/write-imm/bounds/*", "REM_ACCESS_ERR(10)", RECEIVE_FAILS),
    known("rc/write-imm/keys/*", "REM_ACCESS_ERR(10)", RECEIVE_FAILS),
    known("rc/*/remote-access/no-permission-of-*", "for the event", NO_EVENT),
    known("rc/*/inline/refused", "accepted", IGNORES_INLINE),
    known("*/local-protection/key-of-nothing", "LOC_QP_OP_ERR", UNKNOWN_KEY),
    known("*/local-protection/highest-key", "LOC_QP_OP_ERR", UNKNOWN_KEY),
    known("*/local-protection/key-of-another-domain", "LOC_QP_OP_ERR", UNKNOWN_KEY),
    known("*/local-protection/deregistered", "LOC_QP_OP_ERR", UNKNOWN_KEY),
    known("u*/local-protection/before-the-region", "to be in SQE", NO_SQE),
    known("u*/local-protection/over-the-end", "to be in SQE", NO_SQE),
    known("u*/local-protection/wraps-around", "to be in SQE", NO_SQE),
    known("rc/*/a-result-of-nine-bytes-*", "SUCCESS", LONG_RESULT),
    known("rc/recv/local-protection/*", "LOC_QP_OP_ERR", RECEIVE_ANY_FAULT),
    known("rc/srq/recv/local-protection/*", "LOC_QP_OP_ERR", RECEIVE_ANY_FAULT),
    known("ud/recv/local-protection/*", "LOC_QP_OP_ERR", RECEIVE_ANY_FAULT),
    known("*/transition/reset-to-err", "RESET to ERR", NO_RESET_TO_ERR),
    known("*/recv/state/flushed-in-err", "waited", FLUSHES_ONCE),
    known("*/flush/what-is-posted-later-too", "waited", FLUSHES_ONCE),
    known("rc/send/longer-than-its-receive", "REM_OP_ERR(11)", OPERATION_ERR),
    known("rc/srq/a-message-too-long-fails-one-pair", "REM_OP_ERR(11)", OPERATION_ERR),
    known("ud/send/longer-than-the-mtu-is-refused", "over an MTU", OVER_THE_MTU),
    known("rc/notify/failures-count-as-solicited", "waited", NO_SOLICITED_FAILURE),
    known("rc/queues/an-unknown-opcode-is-refused", "accepted", UNCHECKED),
    known("uc/*/refused", "", UNCHECKED),
    known("ud/*/refused", "", UNCHECKED),
    known("rc/events/each-device-its-own", "for the event", NO_EVENT),
    known("rc/events/a-violation-*", "for the event", NO_EVENT),
    known("rc/sqd/sends-wait-and-go-on", "waited", STAYS_IN_SQD),
    known("ud/qkey/a-controlled-one-stands-for-the-pairs-own", "waited", PLAIN_QKEY),
    known("rc/srq/last-receive-is-told", "QpLastWqeReached", NO_LAST_RECEIVE),
];
