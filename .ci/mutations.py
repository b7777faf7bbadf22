"""Breaks the software RNIC and the simulator in small ways, one at a time, and shows that a test notices each.

    python3 .ci/mutations.py [NAME...]      all of them, or those named
    python3 .ci/mutations.py --list         names them, and checks that each still applies

Works in a scratch clone of HEAD. A mutation is an exact piece of text that must occur once in its file, what replaces it,
and the check that must fail because of it. It counts as caught only if the check passes unbroken, the broken program
compiles, and the check then fails. A mutation that no longer applies is a failure: whoever changes the code says what the
new mistake to make would be. What is built under CARGO_TARGET_DIR (by default in the clone) keeps the mistakes of the last.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent.parent
SOFTNIC = "crates/softnic/src/"
# What a check may take before a hang counts as noticed.
CHECK_SECONDS = 300


class Check:
    """A command whose tests are built first, so that a failure to compile is not taken for a failing test."""

    def __init__(self, arguments, environment=None):
        self.arguments, self.environment = arguments, environment or {}

    def run(self, folder, build_only):
        environment = {**os.environ, **self.environment}
        if "--cfg loom" in environment.get("RUSTFLAGS", ""):
            # Other flags rebuild everything: a folder of their own.
            environment["CARGO_TARGET_DIR"] = os.path.join(environment["CARGO_TARGET_DIR"], "loom")
        words = ["cargo", "test", "-q"] + (["--no-run"] if build_only else []) + self.arguments
        try:
            ended = subprocess.run(
                words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=None if build_only else CHECK_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return False, "it hangs"
        return ended.returncode == 0, ended.stdout + ended.stderr

    def __str__(self):
        prefix = [f"{name}='{value}'" for name, value in self.environment.items()]
        return " ".join(prefix + ["cargo test"] + self.arguments)


def conformance(cases):
    return Check(["-p", "farcall-conformance", "--test", "softnic"], {"CONFORMANCE_FILTER": cases})


def model(name):
    return Check(["--release", "-p", "farcall-softnic", "--lib", name], {"RUSTFLAGS": "--cfg loom"})


def unit(name):
    return Check(["-p", "farcall-softnic", "--lib", name])


# Worlds in virtual time: what is wrong with the simulator shows what their checkers see.
WORLDS = Check(["-p", "farcall-sim", "--test", "seeds", "seeds_hold"],
               {"FARCALL_SIM_FIRST": "1", "FARCALL_SIM_SEEDS": "60"})


def integration(file, name):
    return Check(["-p", "farcall-softnic", "--test", file, name])


def death(file):
    """A process is killed, or stopped, before its n-th store, for every n."""
    return Check(["--release", "-p", "farcall-softnic", "--features", "store-hook", "--test", file])


# Name, file (in the software RNIC, unless it begins with "crates/"), text, replacement, check.
MUTATIONS = [
    ("generation-not-rechecked", "qp/grants.rs",
     """        let current = self.accept.load(Acquire) == self.accept_word
            && self.generation_word.load(Acquire) == self.generation;
        if current""",
     """        let current = self.accept.load(Acquire) == self.accept_word;
        if current""",
     conformance("rc/*/keys/deregistered-after-use")),
    ("closed-pair-not-rechecked", "qp/grants.rs",
     """        let current = self.accept.load(Acquire) == self.accept_word
            && self.generation_word.load(Acquire) == self.generation;
        if current""",
     """        let current = self.generation_word.load(Acquire) == self.generation;
        if current""",
     conformance("rc/transition/rts-takes-access-away-after-use")),
    ("bounds-not-checked", "peer.rs",
     "if offset > self.len_bytes || len_bytes > self.len_bytes - offset {",
     "if offset > self.len_bytes {",
     conformance("rc/read/bounds/over-the-end")),
    ("permission-of-region-not-checked", "qp/send.rs",
     "(Some(_), Some(place)) if current && region.access.contains(need) => {",
     "(Some(_), Some(place)) if current => {",
     conformance("rc/*/remote-access/no-permission-of-region")),
    ("permission-of-pair-not-checked", "qp/send.rs",
     "(Some(accept), _) if !accept.access().contains(need) => {",
     "(Some(accept), _) if accept.access().is_empty() => {",
     conformance("rc/*/remote-access/no-permission-of-queue-pair")),
    ("domain-not-checked", "regions.rs",
     "if (pd_access >> 32) as u32 != pd || !(receive",
     "if !(pd > 0 || receive",
     conformance("rc/*/keys/other-domain")),
    ("local-domain-not-checked", "regions.rs",
     """        (pd_access >> 32) as u32 == pd
            && access.contains(need)""",
     """        pd > 0
            && access.contains(need)""",
     conformance("rc/*/local-protection/key-of-another-domain")),
    ("local-permission-not-checked", "regions.rs",
     """            && access.contains(need)
            && offset <= region_len""",
     """            && (access.contains(need) || true)
            && offset <= region_len""",
     conformance("rc/*/local-protection/no-write-permission")),
    ("unsignalled-signalled", "qp/core/completions.rs",
     "if self.signal_all || flags.contains(SendFlags::SIGNALED) {",
     "if self.signal_all || flags.bits() < u32::MAX {",
     conformance("rc/*/signals/only-where-asked")),
    ("receives-not-flushed", "qp/receive.rs",
     "QpState::Err if taken < wc.len() => taken",
     "QpState::Sqe if taken < wc.len() => taken",
     conformance("rc/flush/posted-receives-in-order")),
    ("sleepers-not-woken-by-failure", "qp/core/lives.rs",
     """                self.set_flush_waits(true);
            }
            self.announce_locally(true);""",
     """                self.set_flush_waits(true);
            }""",
     conformance("rc/flush/sleepers-are-woken")),
    ("empty-element-ends-a-list", "qp/transfer.rs",
     """        let len = left.min(sge.length as usize);
""",
     """        let len = left.min(sge.length as usize);
        if len == 0 {
            break;
        }
""",
     conformance("rc/send/elements/scattered-in-order")),
    ("wrong-q-key-taken", "datagram/outlet.rs",
     "Some(qkey) if qkey != message.qkey => return Fate::WrongQkey,",
     "Some(qkey) if qkey == u32::MAX => return Fate::WrongQkey,",
     conformance("ud/qkey/*")),
    ("limit-told-again-and-again", "srq.rs",
     "            queue.limit = 0;\n",
     "",
     conformance("rc/srq/limit-is-told-once")),
    ("arming-weakened", "readiness.rs",
     "if solicited_only && armed & WHAT == ARMED_ANY {",
     "if solicited_only && armed & WHAT == FIRING {",
     conformance("rc/notify/the-stronger-arming-holds")),
    ("unsolicited-wakes", "readiness.rs",
     "ARMED_ANY | ARMED_SOLICITED if armed & WHAT == ARMED_ANY || solicited => {",
     "ARMED_ANY | ARMED_SOLICITED if armed & WHAT == ARMED_ANY || solicited || armed > 0 => {",
     conformance("rc/notify/solicited-only")),
    ("atomics-not-atomic", "shared/memory.rs",
     "AtomicChange::Add(value) => word.fetch_add(value, Ordering::SeqCst),",
     """AtomicChange::Add(value) => {
                let old = word.load(Ordering::SeqCst);
                std::thread::yield_now();
                word.store(old.wrapping_add(value), Ordering::SeqCst);
                old
            }""",
     integration("atomics", "atomic")),
    ("memory-given-back-under-an-access", "mr.rs",
     "!(granted.remote || granted.receive) || self.wait_for_peers(granted)",
     "!(granted.remote || granted.receive) || self.len_bytes > 0",
     unit("qp::tests")),
    ("region-renewed-with-its-old-generation", "regions.rs",
     "let generation = next.wrapping_add(key.wrapping_sub(next) & 0xFF);",
     "let generation = next.min(key & 0xFF);",
     unit("regions::tests")),
    ("receive-not-looked-at-again", "qp/receive.rs",
     "if is_doubtful && record.kind == Kind::Send && !core",
     "if is_doubtful && record.kind == Kind::SendPlaced && !core",
     integration("states", "a_small_message_into_memory_that_was_deregistered")),
    ("message-placed-where-nobody-may-write", "qp/message.rs",
     "place.filter(|_| region.access.contains(Access::LOCAL_WRITE))",
     "place.filter(|_| len > 0)",
     integration("registered_anew", "a_message_into_a_moved_region")),
    ("death-taken-for-memory-that-is-gone", "qp/private.rs",
     "        Fault::Ended => Step::Wait(Wait::Peer),",
     "        Fault::Ended => Step::Failed(WcStatus::REM_OP_ERR),",
     death("store_hook_private")),
    ("record-published-before-its-payload", "ring/producer.rs",
     "        self.mem.store(at, word, Release);",
     "        self.mem.store(at, word, Relaxed);",
     model("ring::tests")),
    ("hazard-without-its-fence", "hazard.rs",
     """    mem.store(HAZARD, value, Relaxed);
    fence::light();
}""",
     """    mem.store(HAZARD, value, Relaxed);
}""",
     model("hazard::tests")),
    ("hazard-left-too-early", "hazard.rs",
     "    mem.store(HAZARD, 0, Release);",
     "    mem.store(HAZARD, 0, Relaxed);",
     model("hazard::tests")),
    ("arming-without-its-fence", "readiness.rs",
     """        fence::heavy();
        was_armed""",
     "        was_armed",
     model("readiness::tests")),
    ("no-second-look-after-withdrawing", "readiness.rs",
     "                if has_something(bit) {",
     "                if has_something(bit) && bit == u32::MAX {",
     model("readiness::tests")),
    ("sleeper-not-told-of-credit", "credit.rs",
     """    mem.store(WANT, 1, Relaxed);
    fence::heavy();""",
     "    mem.store(WANT, 1, Relaxed);",
     model("credit::tests")),
    ("stopped-waker-silences-others", "readiness.rs",
     "                FIRING => break armed,",
     "                FIRING => return,",
     model("readiness::tests")),
    ("undelivered-nudge-silences-others", "readiness.rs",
     "            if seen & WHAT == DELIVERED {",
     "            if seen & WHAT != 0 {",
     model("readiness::tests")),
    ("event-before-its-completion", "qp/send.rs",
     "remote.layout.shared => remote.doorbell.nudge(),",
     "remote.layout.shared => remote.doorbell.announce(solicited),",
     integration("srq_events", "a_message_without_a_shared_receive_is_no_event")),
    ("void-message-continued", "crates/sim/src/qp/responder.rs",
     "        if has_gap || part.is_first {",
     "        if part.is_first {",
     WORLDS),
    ("unreliable-message-taken-twice", "crates/sim/src/qp/responder.rs",
     """        if psn.is_before(self.responder.expected()) {
            return;
        }
        let has_gap = psn != self.responder.expected();""",
     """        let has_gap = psn != self.responder.expected() && !psn.is_before(self.responder.expected());""",
     WORLDS),
    ("told-before-it-landed", "crates/sim/src/qp/responder.rs",
     "let ready_ns = self.responder.landed_ns.max(state.now_ns) + pause_ns;",
     "let ready_ns = state.now_ns + pause_ns;",
     WORLDS),
    ("atomic-executed-again", "crates/sim/src/qp/responder.rs",
     "Body::AtomicRequest { .. } => self.later(state, Step::AtomicAgain { psn }),",
     """Body::AtomicRequest { addr, rkey, op } => {
                self.later(state, Step::Atomic { psn, addr: *addr, rkey: *rkey, op: *op });
            }""",
     WORLDS),
    ("datagram-from-the-wrong-address", "crates/sim/src/qp/datagram.rs",
     "copy_from_slice(&state.nodes[src as usize].gid.0[12..]);",
     "copy_from_slice(&state.nodes[(src ^ 1) as usize].gid.0[12..]);",
     WORLDS),
    ("datagram-doubled-by-its-device", "crates/sim/src/qp/datagram.rs",
     "        state.send(Packet { src: self.node, dst, src_qpn, dst_qpn, transport: QpType::Ud, psn, body });",
     """        for body in [body.clone(), body] {
            state.send(Packet { src: self.node, dst, src_qpn, dst_qpn, transport: QpType::Ud, psn, body });
        }""",
     WORLDS),
    ("shared-receive-consumed-twice", "crates/sim/src/receive.rs",
     "        self.posted.pop_front_if(|receive| will_do(receive))",
     "        self.posted.front().filter(|receive| will_do(receive)).cloned()",
     WORLDS),
    ("shared-receive-lost", "crates/sim/src/qp/responder.rs",
     """        receives.extend(self.kept.take());
""",
     "",
     WORLDS),
    ("shared-limit-told-again", "crates/sim/src/srq.rs",
     "            srq.limit = 0;\n",
     "",
     WORLDS),
    ("shared-limit-not-told", "crates/sim/src/srq.rs",
     "        if (srq.queue.len() as u32) < srq.limit {",
     "        if (srq.queue.len() as u32) + 1 < srq.limit {",
     WORLDS),
    ("landing-out-of-turn", "crates/sim/src/qp/responder.rs",
     "self.responder.from_ns = self.responder.landed_ns.max(state.now_ns + state.params.placement_ns);",
     "self.responder.from_ns = state.now_ns + state.params.placement_ns;",
     WORLDS),
]


def source(file):
    """Where a file of the table lies in the repository."""
    return file if file.startswith("crates/") else SOFTNIC + file


def applied(text, old, new, name):
    """The mutated text, or the end: a mutation that does not apply proves nothing."""
    count = text.count(old)
    if count != 1:
        sys.exit(f"{name}: its text occurs {count} times, must once: the code has changed, so must the mutation")
    return text.replace(old, new)


def main():
    wanted = [name for name in sys.argv[1:] if name != "--list"]
    unknown = set(wanted) - {mutation[0] for mutation in MUTATIONS}
    if unknown:
        sys.exit(f"no such mutation: {', '.join(sorted(unknown))}")
    chosen = [mutation for mutation in MUTATIONS if not wanted or mutation[0] in wanted]
    for name, file, old, new, _ in chosen:
        applied((HERE / source(file)).read_text(), old, new, name)
    if "--list" in sys.argv:
        print("\n".join(f"{name}  ({check})" for name, _, _, _, check in chosen))
        return
    scratch = pathlib.Path(tempfile.mkdtemp())
    try:
        survived = run(scratch / "farcall", chosen)
    finally:
        shutil.rmtree(scratch)
    if survived:
        sys.exit(f"not noticed: {', '.join(survived)}")
    print(f"All {len(chosen)} mutations are noticed.")


def run(clone, chosen):
    """Tries mutations one by one; returns the names of those that no check noticed."""
    subprocess.run(["git", "clone", "-q", "--no-local", str(HERE), str(clone)], check=True)
    os.environ.setdefault("CARGO_TARGET_DIR", str(clone / "target"))
    sound, survived = set(), []
    for name, file, old, new, check in chosen:
        if str(check) not in sound:
            passes, output = check.run(clone, False)
            if not passes:
                sys.exit(f"{check}\nfails without any mutation:\n{output[-4000:]}")
            sound.add(str(check))
        path = clone / source(file)
        before = path.read_text()
        path.write_text(applied(before, old, new, name))
        compiles, output = check.run(clone, True)
        if not compiles:
            sys.exit(f"{name} does not compile:\n{output[-4000:]}")
        passes, _ = check.run(clone, False)
        path.write_text(before)
        print(f"{'NOT NOTICED' if passes else 'noticed':12} {name}: {check}", flush=True)
        if passes:
            survived.append(name)
    return survived


if __name__ == "__main__":
    main()
