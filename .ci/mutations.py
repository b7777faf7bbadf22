"""Makes small mistakes in the product on purpose, one at a time, and shows that a test notices each.

    python3 .ci/mutations.py [NAME...]          all of them, or those named
    python3 .ci/mutations.py --list             names them, and checks that each still applies
    python3 .ci/mutations.py --changed BASE     those in functions of files that changed since the commit BASE
    python3 .ci/mutations.py --default          the few that the gate runs when it does not know what changed

    --part K/N      the Kth of N parts of them, in the order of their checks
    --seconds N     begins no further mutation after so many seconds, and names those that are left
    --here          changes the files of this clone, which must be clean, instead of a scratch clone of HEAD

A mutation names a function, an edit of its body (rust_source.py), and the check that must fail because of it. It is
noticed only if the check passes without the mutation, the changed program compiles, and the check then fails. One that no
longer applies is a failure: whoever changes the code says what the new mistake would be.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from rust_source import Delete, Replace, edited

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A check that takes longer hangs, and has noticed the mutation; or so many times as long as without it.
CHECK_SECONDS = 300
CHECK_TIMES = 4
# Without a mutation, on a busy machine.
CHECK_SECONDS_MAX = 1200


@dataclasses.dataclass(frozen=True)
class Check:
    """Arguments of `cargo test`. Without `-p`, the package is that of the function."""

    arguments: tuple
    environment: tuple = ()

    def of_package(self, package):
        """The check, with the package that it tests."""
        given = () if {"-p", "--workspace"} & set(self.arguments) else ("-p", package)
        return Check((*given, *self.arguments), self.environment)

    def run(self, folder, seconds=None, build_only=False):
        """Returns whether it passes, and its output. Built apart: a failure to compile is no failure of a test.
        What hangs ends with all of its processes."""
        environment = {**os.environ, **dict(self.environment), "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1"}
        if "--cfg loom" in environment.get("RUSTFLAGS", ""):
            # Other flags rebuild everything: a folder of their own.
            environment["CARGO_TARGET_DIR"] = os.path.join(environment["CARGO_TARGET_DIR"], "loom")
        command = ["cargo", "test", "-q", *(["--no-run"] if build_only else []), *self.arguments]
        cargo = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )
        try:
            output, _ = cargo.communicate(timeout=seconds)
        except BaseException as ended:
            os.killpg(cargo.pid, signal.SIGKILL)
            cargo.communicate()
            if not isinstance(ended, subprocess.TimeoutExpired):
                raise
            return False, "it hangs"
        return cargo.returncode == 0, output

    def __str__(self):
        return " ".join([f"{name}='{value}'" for name, value in self.environment] + ["cargo test", *self.arguments])


def conformance(cases):
    """Cases of the conformance suite on the software RNIC."""
    return Check((*TEST_FILE, "softnic"), (("CONFORMANCE_FILTER", cases),))


def model(name):
    """loom models in the function's package."""
    return Check(("--profile", PROFILE, "--lib", name), (("RUSTFLAGS", "--cfg loom"),))


def unit(name):
    """Unit tests in the function's package."""
    return Check(("--lib", name))


def integration(file, name=""):
    """Tests of a file in a package's `tests`."""
    return Check((*TEST_FILE, file, name))


def optimised(file, name):
    """Tests of a file in a package's `tests`, in a program that is as quick as users have it."""
    return Check(("--profile", PROFILE, *TEST_FILE, file, name))


def death(file):
    """A process is killed, or stopped, before its n-th store to shared memory, for every n."""
    return Check(("--workspace", "--profile", PROFILE, "--test", file, "--", "--ignored"))


# The profile of tests that need an optimised program; see Cargo.toml.
PROFILE = "release-test"
# A file in any package's `tests`. The whole workspace decides the features of dependencies, as in the other steps:
# they are built once.
TEST_FILE = ("--workspace", "--test")
# Worlds in virtual time: mistakes in the simulator and in the transport show in what their checkers see.
WORLDS = Check(("--profile", PROFILE, *TEST_FILE, "seeds", "seeds_hold"),
               (("FARCALL_SIM_FIRST", "1"), ("FARCALL_SIM_SEEDS", "60")))


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A mistake: the function, the edit, the check that notices it."""

    name: str
    function: str
    edit: object
    check: Check


def package_name(folder):
    return re.search(r'^name = "(.+)"', (folder / "Cargo.toml").read_text(), re.MULTILINE)[1]


def package_of(file):
    return package_name(next(folder for folder in file.parents if (folder / "Cargo.toml").exists()))


def all_mutations():
    """The table."""
    generation = "self.generation_word.load(Acquire) == self.generation"
    accept = "self.accept.load(Acquire) == self.accept_word"
    return [
        # What programs in other languages hand over and wait on.
        Mutation("misaligned-pointer-followed", "argument::check", Replace("!pointer.is_aligned()", "false"),
                 Check((*TEST_FILE, "programs", "c_calls_everything"))),
        Mutation("newcomers-of-listener-not-watched", "StreamListener::take_now",
                 Delete("self.follow(until.map(|until| until.since(now)))?"),
                 Check((*TEST_FILE, "sockets", "a_listener_can_be_waited_on"))),
        # Requests that threads leave for whoever has the turn.
        Mutation("turn-taken-without-acquire", "Arrivals::leave",
                 Replace("compare_exchange_weak(last, at, AcqRel, Relaxed)",
                         "compare_exchange_weak(last, at, Relaxed, Relaxed)"), model("arrivals::models")),
        Mutation("turn-given-back-without-release", "Turn::give_back",
                 Replace("TAKEN, IDLE, AcqRel, Relaxed", "TAKEN, IDLE, Relaxed, Relaxed"),
                 model("arrivals::models")),
        Mutation("place-freed-without-release", "Turn::take", Replace("(at % 64), Release)", "(at % 64), Relaxed)"),
                 model("arrivals::models")),
        # Pollers, and those who rely on them.
        Mutation("poller-asleep-seen-too-late", "WakeWord::is_armed", Delete("fence::light();"), model("cover_word")),
        Mutation("covered-left-behind", "Poller::sleep", Replace("covered.leave();", "let _ = covered;"),
                 unit("pollers")),
        Mutation("late-event-not-taken", "Waiter::is_awake", Replace("cover.take_events();", ""),
                 unit("pollers")),
        Mutation("spin-in-vain-for-ever", "Spin::learn", Replace("self.timeout /= 2;", ""), unit("spin")),
        Mutation("wish-not-heard-by-a-writer", "RingStream::write", Delete("self.hear_wish();"),
                 integration("transfer", "an_end_that_only_writes")),
        Mutation("wish-not-heard-by-a-composer", "RingStream::write_with", Delete("self.hear_wish();"),
                 integration("transfer", "an_end_that_only_writes")),
        # Packets of strangers.
        Mutation("trains-for-several-taken-on", "Socket::refuse_trains_of",
                 Replace("self.slots.take_trains(false);", ""),
                 integration("port_shared", "trains_come_until")),
        Mutation("held-once-unless-somebody-looks", "held_once",
                 Replace("let mut held = HELD.lock();",
                         "let Some(mut held) = HELD.try_lock() else { return make() };"),
                 unit("held_once")),
        Mutation("list-locked-in-a-child", "in_child",
                 Replace("held_once.detach();", "std::mem::forget(held_once);"), unit("life::fork")),
        Mutation("foreign-address-let-in", "State::take_in",
                 Replace("(side.path.src, side.path.dst) != (path.dst, path.src)", "false"),
                 integration("strangers")),
        Mutation("crc-not-looked-at", "State::take_in",
                 Replace("!covered.is_sound(arrival.before, datagram)", "false"),
                 integration("strangers")),
        Mutation("identification-taken-for-zero", "Covered::identification",
                 Replace("explains(difference, behind).filter(|_| self.is_v4)", "None::<[u8; 2]>"),
                 unit("a_captured_packet")),
        Mutation("train-takes-any-length", "Waiting::behind",
                 Replace("&& last.len_bytes == last.first_bytes", ""), integration("trains", "travel_together")),
        Mutation("train-goes-to-another-pair", "Waiting::behind",
                 Replace("(last.path, last.dest_qpn, last.may_be_cut) == (self.path, self.dest_qpn, self.may_be_cut)",
                         "(last.path, last.may_be_cut) == (self.path, self.may_be_cut)"),
                 unit("a_train_is_of_packets_of_one_length_to_one_pair")),
        Mutation("refusal-told-once", "Qp::requested_after_failure",
                 Replace("*psn == packet.psn", "false"), integration("transport", "a_refusal_that_was_lost")),
        # Congestion: who is told, how often, and how slow a pair becomes.
        Mutation("peer-told-of-every-marked-packet", "Qp::marked",
                 Replace("now_ns >= self.congestion.tells_from_ns", "true"),
                 integration("transport", "once_in_50_us")),
        Mutation("own-pause-taken-for-loss", "Qp::timed_out", Replace("&& !has_paused", ""),
                 integration("transport", "does_not_take_its_own_pauses_for_loss")),
        Mutation("no-lowest-rate", "Dcqcn::notified",
                 Replace("self.current.max(self.bounds.min_bytes_per_s as f64)", "self.current"),
                 unit("a_flood_of_notifications")),
        Mutation("kept-acknowledgements-never-sent", "Outbox::flush", Replace("self.queue_kept(socket);", ""),
                 optimised("kept_acknowledgements", "who_polls_no_more")),
        Mutation("kept-acknowledgements-sent-with-receives", "State::finish_work",
                 Replace("self.out.has_more_than_kept()", "true"),
                 optimised("kept_acknowledgements", "who_polls_no_more")),
        Mutation("turns-that-nobody-takes", "State::call_service", Delete("self.ring_at(self.now_ns);"),
                 integration("trains", "a_long_message_goes_out_whole")),
        Mutation("work-in-the-port-taken-for-absence", "Owner::judge",
                 Replace("age_ns.saturating_sub(self.busy_ns)", "age_ns"), unit("who_is_kept_busy_by_its_looks")),
        Mutation("crc-of-the-datagram-before", "LastCovered::of",
                 Replace("self.covered = None;", ""),
                 integration("trains", "packets_travel_together_and_arrive")),
        Mutation("long-post-taken-for-a-pause", "Owner::looks", Replace("self.left_ns", "self.looked_ns"),
                 unit("a_post_that_takes_long_is_no_pause")),
        Mutation("mark-of-the-kernel-not-read", "Told::by", Replace("told.is_marked = Ecn::is_congested(data.read())", ""),
                 integration("congestion", "marked_packets_of_ipv4")),
        # The order of requests that overlap.
        Mutation("overlap-under-way-ignored", "MergeQueue::find_candidates",
                 Replace("self.in_flight.conflicts(direction, &span) || ", ""), unit("one_after_another")),
        Mutation("overlap-in-queue-ignored", "MergeQueue::find_candidates",
                 Replace(" || self.ahead.conflicts(direction, &span)", ""), unit("one_after_another")),
        Mutation("readers-not-waited-for", "Coverage::conflicts",
                 Replace("s.writers > 0 || direction == Direction::Write", "s.writers > 0"),
                 unit("one_after_another")),
        # What admission holds back.
        Mutation("admission-not-asked-again", "MergeQueue::is_still_held_back",
                 Replace("self.held_back.filter(|bytes| !self.admission.admits(self.in_flight_bytes, *bytes))",
                         "self.held_back"), unit("counts_of_the_paper")),
        Mutation("held-back-for-ever", "MergeQueue::ended", Delete("self.held_back = None;"),
                 unit("counts_of_the_paper")),
        # Calls of gRPC: what a peer may send, and that every call ends.
        Mutation("short-message-beyond-the-window", "Calls::takes_short",
                 Replace("is_silent && outbox.window_left as usize >= len", "is_silent"),
                 Check(("--test", "grpc", "direct_calls_beyond_those_that_may_be_open"))),
        Mutation("direct-request-compressed-taken", "message::read",
                 Replace("*is_compressed != 0", "false"),
                 Check(("--test", "grpc", "requests_that_are_no_messages"))),
        Mutation("data-beyond-the-window-taken", "Calls::take_data",
                 Replace('checked_sub(len).ok_or(Garbled("more data than this end has room for"))?',
                         "wrapping_sub(len)"), unit("goes_beyond_what_it_was_told")),
        Mutation("window-given-before-it-is-told", "Calls::was_read",
                 Replace("call.outbox.credit +=", "inbox.window_left += inbox.owed; call.outbox.credit +="),
                 unit("goes_beyond_what_it_was_told")),
        Mutation("end-of-an-unsent-call-told", "Calls::fail", Replace("!call.was_opened {", "false {"),
                 unit("no_call_is_left_behind")),
        Mutation("given-up-calls-not-counted", "Calls::take_call",
                 Replace("*running + accepted.len()", "accepted.len()"), unit("given_up_and_do_not_end")),
        # Keys, bounds and permissions of one-sided requests.
        Mutation("generation-not-rechecked", "Grants::one_sided", Replace(generation, "true"),
                 conformance("rc/*/keys/deregistered-after-use")),
        Mutation("closed-pair-not-rechecked", "Grants::one_sided", Replace(accept, "true"),
                 conformance("rc/transition/rts-takes-access-away-after-use")),
        Mutation("bounds-not-checked", "MappedRegion::locate",
                 Replace("|| len_bytes > self.len_bytes - offset", ""),
                 conformance("rc/read/bounds/over-the-end")),
        Mutation("permission-of-region-not-checked", "Initiator::one_sided",
                 Replace("current && region.access.contains(need)", "current"),
                 conformance("rc/*/remote-access/no-permission-of-region")),
        Mutation("permission-of-pair-not-checked", "Initiator::one_sided",
                 Replace("(Some(accept), _) if !accept.access().contains(need)",
                         "(Some(accept), _) if accept.access().is_empty()"),
                 conformance("rc/*/remote-access/no-permission-of-queue-pair")),
        Mutation("domain-not-checked", "RegionTable::grant",
                 Replace("(pd_access >> 32) as u32 != pd", "pd == 0"),
                 conformance("rc/*/keys/other-domain")),
        Mutation("local-domain-not-checked", "RegionTable::allows",
                 Replace("(pd_access >> 32) as u32 == pd", "pd > 0"),
                 conformance("rc/*/local-protection/key-of-another-domain")),
        Mutation("local-permission-not-checked", "RegionTable::allows",
                 Replace("access.contains(need)", "(access.contains(need) || true)"),
                 conformance("rc/*/local-protection/no-write-permission")),

        # Completions, receives and flushes.
        Mutation("unsignalled-signalled", "QpCore::complete_send",
                 Replace("flags.contains(SendFlags::SIGNALED)", "flags.bits() < u32::MAX"),
                 conformance("rc/*/signals/only-where-asked")),
        Mutation("receives-not-flushed", "RecvSide::poll_aside",
                 Replace("QpState::Err if taken < wc.len()", "QpState::Sqe if taken < wc.len()"),
                 conformance("rc/flush/posted-receives-in-order")),
        Mutation("violation-not-shown", "Initiator::note_violation",
                 Delete("self.inbound().store(VIOLATION, kind as u64, Ordering::Release)"),
                 integration("errors", "a_target_has_failed")),
        Mutation("sleepers-not-woken-by-failure", "QpCore::shut_out_peer", Delete("self.announce_locally(true)"),
                 conformance("rc/flush/sleepers-are-woken")),
        Mutation("empty-element-ends-a-list", "scatter_from_ring",
                 Replace("let len = $len;", "let len = $len; if len == 0 { break; }"),
                 conformance("rc/send/elements/scattered-in-order")),
        Mutation("wrong-q-key-taken", "Outlet::offer",
                 Replace("Some(qkey) if qkey != message.qkey", "Some(qkey) if qkey == u32::MAX"),
                 conformance("ud/qkey/*")),
        Mutation("limit-told-again-and-again", "SrqCore::check_limit", Delete("queue.limit = 0"),
                 conformance("rc/srq/limit-is-told-once")),
        Mutation("arming-weakened", "Readiness::arm",
                 Replace("solicited_only && armed & WHAT == ARMED_ANY", "solicited_only && armed & WHAT == FIRING"),
                 conformance("rc/notify/the-stronger-arming-holds")),
        Mutation("unsolicited-wakes", "Readiness::fire",
                 Replace("WHAT == ARMED_ANY || solicited", "WHAT == ARMED_ANY || solicited || armed > 0"),
                 conformance("rc/notify/solicited-only")),
        Mutation("segments-of-strangers-read", "found",
                 Replace("number(9)? == u64::from(uid)", "number(9)? < u64::MAX"),
                 unit("only_segments_that_this_user_made")),
        Mutation("atomics-not-atomic", "update_word",
                 Replace("AtomicChange::Add(value) => word.fetch_add(value, Ordering::SeqCst),",
                         """AtomicChange::Add(value) => {
                                let old = word.load(Ordering::SeqCst);
                                std::thread::yield_now();
                                word.store(old.wrapping_add(value), Ordering::SeqCst);
                                old
                            }"""),
                 integration("atomics", "atomic")),

        # Regions that are revoked, renewed or moved.
        Mutation("memory-given-back-under-an-access", "Mr::withdraw",
                 Replace("self.wait_for_peers(granted)", "self.attr.len_bytes > 0"),
                 unit("qp::tests")),
        Mutation("region-renewed-with-its-old-generation", "RegionTable::renew",
                 Replace("let generation = next.wrapping_add($step);", "let generation = next.min(key & 0xFF);"),
                 unit("regions::tests")),
        Mutation("receive-not-looked-at-again", "RecvSide::complete",
                 Replace("record.kind == Kind::Send &&", "record.kind == Kind::SendPlaced &&"),
                 integration("states", "a_small_message_into_memory_that_was_deregistered")),
        Mutation("message-placed-where-nobody-may-write", "message::place",
                 Replace("region.access.contains(Access::LOCAL_WRITE)", "len > 0"),
                 integration("registered_anew", "a_message_into_a_moved_region")),
        Mutation("death-taken-for-memory-that-is-gone", "private::failed",
                 Replace("Fault::Ended => Step::Wait(Wait::Peer)",
                         "Fault::Ended => Step::Failed(WcStatus::REM_OP_ERR)"),
                 death("store_hook_private")),

        # Answers wait for a peer that has no processor.
        Mutation("answered-without-room", "Client::serve",
                 Replace("!takes_frames(self.socket.as_fd())", "false"),
                 integration("process", "a_peer_that_takes_its_answers_late")),

        # Chains of overflow blocks.
        Mutation("block-taken-away-unseen", "Index::unlink_if_empty",
                 Delete("self.count_move()"), unit("a_chain_takes_keys_of_one_neighbourhood")),
        Mutation("block-not-given-back", "Index::unlink_if_empty",
                 Delete("self.spare.push(block)"), unit("a_chain_takes_keys_of_one_neighbourhood")),

        # Bytes that tell of requests.
        Mutation("byte-of-message-not-followed", "DenseBytes::follow",
                 Replace("last_before(expect)", "last_before(expect.next())"), integration("dense_mailbox")),
        Mutation("bytes-always-trusted", "Responder::serve_all",
                 Replace("self.lookout.distrusts_bytes", "false"), integration("dense_mailbox")),
        Mutation("bytes-of-the-gone-not-moved-up", "DenseBytes::remove",
                 Replace("u32::from(at as usize > owner)", "0"), integration("dense_mailbox")),

        # Orderings and fences, which models notice.
        Mutation("record-published-before-its-payload", "Producer::publish_slots",
                 Replace("self.mem.store(at, word, Release)", "self.mem.store(at, word, Relaxed)"),
                 model("ring::tests")),
        Mutation("hazard-without-its-fence", "hazard::enter", Delete("fence::light()"), model("hazard::tests")),
        Mutation("hazard-left-too-early", "hazard::leave", Replace("Release", "Relaxed"), model("hazard::tests")),
        Mutation("arming-without-its-fence", "Readiness::arm", Delete("fence::heavy()"), model("readiness::tests")),
        Mutation("no-second-look-after-withdrawing", "Readiness::withdraw_quiet",
                 Replace("has_something(bit)", "has_something(bit) && bit == u32::MAX"),
                 model("readiness::tests")),
        Mutation("sleeper-not-told-of-credit", "notify::request", Delete("fence::heavy()"), model("notify::tests")),
        Mutation("stopped-waker-silences-others", "Readiness::fire",
                 Replace("FIRING => break armed", "FIRING => return"),
                 model("readiness::tests")),
        Mutation("undelivered-nudge-silences-others", "Readiness::nudge",
                 Replace("seen & WHAT == DELIVERED", "seen & WHAT != 0"),
                 model("readiness::tests")),
        Mutation("event-before-its-completion", "Initiator::ring",
                 Replace("self.doorbell.nudge()", "self.doorbell.announce(solicited)"),
                 integration("srq_events", "a_message_without_a_shared_receive_is_no_event")),
        Mutation("receiver-waited-for-without-end", "Outlet::is_worth_waiting",
                 Replace("self.held.sample() < HOLD_MAX", "true"),
                 integration("ud_slow", "a_receiver_that_takes_little_is_not_waited_for_each_time")),
        Mutation("place-for-a-datagram-not-told", "Askers::tell",
                 Replace("self.has_any.load(Relaxed)", "false"), integration("ud_sleep")),
        Mutation("place-asked-for-by-another", "DatagramCore::add_asker",
                 Replace("entry.client == client.id && entry.bit == bit", "entry.bit == bit"),
                 integration("process")),

        # What strangers may take at doors.
        Mutation("sent-replies-kept", "Replies::note_sent", Delete("self.ready.drain(..self.sent)"),
                 unit("a_client_that_never_takes_all_there_is")),
        Mutation("handshake-never-gives-way", "ListenThread::make_room_for",
                 Replace("!self.handshakes.has_room_for(address)", "false"),
                 unit("the_oldest_silent_one_gives_way")),
        Mutation("shortage-taken-for-no-connection", "AcceptRest::goes_on_after", Delete("self.rest(error)"),
                 unit("a_loop_rests_for_a_shortage")),
        Mutation("client-used-in-a-forked-child", "ClientOf::begin",
                 Replace("self.made_in.is_inherited()", "false"), integration("forks")),

        # Calls in batches.
        Mutation("given-up-call-of-a-batch-told", "Told::skip_given_up",
                 Replace("self.call().is_given_up", "false"), integration("batches", "a_call_that_was_given_up")),
        Mutation("gathered-calls-sent-unfinished", "CallerState::end_what_was_sent",
                 Replace("!record.is_open", "true"), integration("batches", "of_a_server_that_restarted")),
        Mutation("batch-with-the-first-deadline", "Calls::shorten_deadline",
                 Replace("Nanos::earlier(*own, deadline)", "own.or(deadline)"),
                 integration("batches", "calls_of_a_batch_end_at")),

        # The transport in worlds of the simulator.
        Mutation("void-message-continued", "Qp::unreliable",
                 Replace("has_gap || segment.is_first()", "segment.is_first()"), WORLDS),
        Mutation("unreliable-message-taken-twice", "Qp::unreliable",
                 Replace("if packet.psn.is_before(expected) { return; } let has_gap = $gap;",
                         "let has_gap = $gap && !packet.psn.is_before(expected);"),
                 WORLDS),
        Mutation("told-before-it-landed", "Qp::respond",
                 Replace("*pending <= first.after", "false && *pending <= first.after"), WORLDS),
        Mutation("atomic-executed-again", "Qp::repeated",
                 Replace("Operation::AtomicRequest(_) => self.reply(psn, Reply::AtomicAnswer { is_repeated: true }),",
                         "Operation::AtomicRequest(target) => self.reply(psn, Reply::Atomic(target)),"),
                 WORLDS),
        Mutation("datagram-from-the-wrong-address", "Nic::place_datagram",
                 Replace("state.nodes[src as usize]", "state.nodes[(src ^ 1) as usize]"), WORLDS),
        Mutation("datagram-doubled-by-its-device", "Nic::transmit",
                 Replace("self.state.send($frame);",
                         "let frame = $frame; self.state.send(frame.clone()); self.state.send(frame);"), WORLDS),
        Mutation("shared-receive-consumed-twice", "ReceiveQueue::pop_if",
                 Replace("self.posted.pop_front_if(|receive| will_do(receive))",
                         "self.posted.front().filter(|receive| will_do(receive)).cloned()"),
                 WORLDS),
        Mutation("shared-receive-lost", "Responder::abandon",
                 Replace("self.void_receive.take()", "self.void_receive.take().filter(|_| false)"), WORLDS),
        Mutation("shared-limit-told-again", "State::tell_if_low", Delete("srq.limit = 0"), WORLDS),
        Mutation("shared-limit-not-told", "State::tell_if_low",
                 Replace("(srq.queue.len() as u32) < srq.limit", "(srq.queue.len() as u32) + 1 < srq.limit"), WORLDS),
        Mutation("landing-out-of-turn", "Nic::place",
                 Replace("self.qp.progress.landed_ns.max(soonest_ns)", "soonest_ns"), WORLDS),
        # Stores that clients READ.
        Mutation("torn-entry-believed", "Checksums::open",
                 Replace("(self.of_words([hash, place, checksum]) == own).then_some", "true.then_some"),
                 unit("an_entry_of_which_any_word")),
        Mutation("torn-inline-value-believed", "Look::entries",
                 Replace("table.checksums.of(pair) != entry.checksum", "false"), unit("what_is_half_written")),
        Mutation("torn-extent-believed", "Look::step",
                 Replace("table.checksums.of(bytes) != self.checksum", "false"), unit("what_is_half_written")),
        Mutation("half-empty-group-says-missing", "Look::entries", Replace("if !is_whole", "if false"),
                 unit("what_is_half_written")),
        Mutation("moved-key-missing", "Look::step", Replace("moves == self.moves", "true"),
                 unit("a_key_is_missing_only")),
        Mutation("moves-not-counted", "Index::count_move",
                 Replace("self.region.load_relaxed(0).wrapping_add(1)", "self.region.load_relaxed(0)"),
                 unit("a_key_is_never_missed")),


        # Calls where messages are lost, and requests and results as datagrams.
        Mutation("lost-request-not-sent-again", "CallerState::ask_for_responses",
                 Delete("self.send_oldest_again::<Q>(now)"),
                 integration("lost", "a_lost_request_is_sent_again")),
        Mutation("lost-response-not-asked-for", "CallerState::ask_to_push",
                 Replace("Imm::Push { oldest_low: head.0 as u16, count }", "{ let _ = count; Imm::Kick }"),
                 integration("lost", "a_lost_response_is_asked_for_and_its_call_not_executed_again")),
        Mutation("datagram-completed-by-an-earlier-one", "CallerState::keep_datagram",
                 Replace("Source::Sent { at }, bytes", "Source::Sent { at }, usize::MAX"),
                 integration("datagrams", "what_an_earlier_datagram_left_in_a_receive_completes_no_other")),
        Mutation("second-copy-of-a-result-taken", "Arrivals::put", Replace("place.is_some()", "false"),
                 integration("datagrams", "results_as_datagrams_are_taken_once")),
        Mutation("result-of-no-call-in-flight-taken", "CallerState::keep_datagram",
                 Replace("self.messages.contains(seq) && self.put_arrived", "self.put_arrived"),
                 integration("datagrams", "results_as_datagrams_are_taken_once")),
        Mutation("receive-of-a-strangers-datagram-lost", "CallerState::datagram_arrived",
                 Delete("arrivals.give_back(receive)"),
                 integration("datagrams", "what_another_than_the_server_sends_is_dropped_and_counted")),
        Mutation("region-taken-away-too-early", "QueuePair::detach",
                 Replace("self.retire(receives, Named::Region { _kept: region })", "drop(region)"),
                 integration("queue_pairs", "what_is_taken_away_from_datagrams")),
        Mutation("memory-of-posted-receives-taken-away", "QueuePair::post_receives",
                 Delete("self.regions.receive_into(&chain.regions)"),
                 integration("queue_pairs", "receives_that_stay_posted_keep_their_own_memory")),
        Mutation("results-of-a-client-that-is-gone-kept", "ThreadPair::remove", Delete("pair.detach(to.results_id)"),
                 integration("seeds", "clients_of_datagrams_that_are_gone_leave_nothing_at_the_server")),
        Mutation("request-of-another-queue-pair-executed", "Responder::arrived",
                 Replace("end.source_qp == source_qp", "end.source_qp != 0"),
                 integration("datagram_requests", "what_another_than_the_client_sends_is_dropped")),
        Mutation("request-without-its-tail-executed", "ServerEnd::arrived",
                 Replace("whole_bytes <= came_bytes", "came_bytes > 0"),
                 integration("datagram_requests", "what_an_earlier_datagram_left_in_a_receive")),
        Mutation("executed-request-not-answered-again", "ServerEnd::asked_again",
                 Delete("self.owed = Some((from, end))"),
                 integration("lost", "a_lost_response_is_asked_for_and_its_call_not_executed_again")),
        Mutation("receive-of-a-request-lost", "Responder::arrived",
                 Delete("self.engine.thread_pair.give_back(receive)"),
                 integration("datagram_requests", "what_another_than_the_client_sends_is_dropped")),
        Mutation("compact-whatever-its-number", "CallerState::form",
                 Replace("self.messages.call_base == base", "self.messages.call_base.is_some()"),
                 integration("compact", "a_call_given_up_before_it_was_sent")),
        Mutation("distance-of-calls-kept-from-the-first", "Engine::serve_one",
                 Replace("end.session.call_base = Some(CallBase::of(header.seq, header.call_id));",
                         "_ = end.session.call_base.get_or_insert(CallBase::of(header.seq, header.call_id));"),
                 integration("compact", "calls_keep_their_numbers")),
        Mutation("notice-of-any-message-taken", "CallerState::awaits_notice",
                 Replace("is_next && self.messages.contains(seq)", "{ _ = is_next; true }"),
                 integration("corrupt", "a_notice_of_a_message_that_waits_for_none")),
        Mutation("told-of-too-early-and-not-read-again", "Message::fetch_again",
                 Replace("(self.mode, self.fetch) = (Mode::Fetch, FetchState::None)", "self.fetch = FetchState::None"),
                 integration("corrupt", "what_was_told_of_too_early_is_read_again")),
        Mutation("length-of-a-notice-ignored", "CallerState::read_what_was_told_of",
                 Replace("len_bytes as usize", "{ _ = len_bytes; 0 }"),
                 integration("calls", "a_result_that_was_told_of_takes_one_read")),
        # Whole pages that go together.
        Mutation("run-that-failed-taken-for-whole", "Engine::write_run_over",
                 Replace("!has_failed && there.eq(targets)", "there.eq(targets)"),
                 integration("softnic", "pages_that_went_together_and_missed_a_node")),
        Mutation("run-that-a-new-replica-missed", "Engine::write_run_over",
                 Replace("!has_failed && there.eq(targets)", "!has_failed"),
                 integration("softnic", "a_replica_that_came_while_pages_went_together")),
        Mutation("pages-of-a-run-not-checked", "Engine::wrong_pages",
                 Replace("!bytes.is_some_and(|bytes| is_right(*page, bytes))", "bytes.is_none()"),
                 integration("softnic", "whole_pages_go_together")),
        Mutation("leases-of-a-claim-not-renewed", "Claiming::has_lease",
                 Replace("self.renew_at.min(asked + term / RENEW_AFTER)", "self.renew_at"),
                 integration("volume", "a_claim_may_take_longer")),
        Mutation("one-replica-read-by-all", "Engine::reader", Replace("turn as usize", "0"),
                 integration("softnic", "pieces_of_a_long_read")),
        Mutation("one-of-two-read-in-a-run", "Engine::is_plain", Replace("&& !self.is_unsettled(page)", ""),
                 integration("volume", "pages_of_a_volume_are_read_together")),
        Mutation("pages-of-a-run-left-to-others", "Engine::begin_run",
                 Delete("ahead.pages.clone().for_each(|page| drop(self.locks.insert(page, VecDeque::new())));"),
                 integration("softnic", "pages_that_go_together_are_taken")),
        # How much of a pair's is on its way.
        Mutation("window-kept-after-a-loss", "Window::lost",
                 Delete("self.limit = (self.limit / 2).max(self.min);"), unit("it_doubles_until_the_first_loss")),
        Mutation("reads-beyond-what-the-peer-keeps", "Qp::waits_for_data",
                 Replace("reads() >= usize::from(self.settings.max_rd_atomic)", "false"),
                 integration("transport", "parts_of_a_long_read_are")),
        Mutation("reads-beyond-the-window", "Qp::waits_for_data", Replace("would_be_too_much() || ", ""),
                 integration("transport", "parts_of_a_long_read_are")),
        # Nodes that leave, and nodes that join.
        Mutation("pages-left-to-a-node-not-heard-of", "Engine::leave_donors",
                 Replace("&& self.donors[donor].heard_at >= since", ""),
                 integration("sim", "a_donor_keeps_what_a_dead_node_had")),
        Mutation("nodes-that-joined-not-kept", "Engine::resume",
                 Replace("kept.iter().cloned().chain(fresh).collect()", "fresh.collect()"),
                 integration("resume", "nodes_that_joined_are_known_to_the_next_process")),
        Mutation("newcomer-in-a-volume-asked-for-slabs", "Engine::join",
                 Delete("donor.is_out = true;"),
                 integration("volume_nodes", "a_node_that_joins_a_volume")),
        # Nodes that are taken into a volume.
        Mutation("newcomer-misses-what-is-noted-meanwhile", "Newcomer::takes",
                 Replace("(at < from).then_some(self.node)", "None"),
                 integration("volume_nodes", "nodes_are_lost_and_taken_in_again")),
        Mutation("member-before-it-has-all-notes", "Engine::copy_notes", Replace("from >= len_bytes", "from > 0"),
                 integration("volume_nodes", "whoever_is_believed")),
        Mutation("drained-nodes-of-a-volume-needed", "nodes_that_count", Replace("!going.contains(id)", "true"),
                 integration("volume_nodes", "may_go_together")),
        Mutation("mount-and-its-follower-both-believed", "Marks::are_enough",
                 Replace("ids.iter().any(|id| mark.members.contains(id))", "true"),
                 integration("volume_nodes", "but_never_both")),
        # Regions of remote memory.
        Mutation("changed-page-thrown-away", "Pager::take_out",
                 Replace("self.memory.holds(page.into(), self.paged.taken_out(place as usize))", "true"),
                 integration("region", "a_region_is_a_plain_vector")),
        Mutation("page-stored-by-an-older-write", "Staging::stored",
                 Replace("Place::Storing(page)", "Place::Dirty(page)"), unit("only_stored_pages_leave")),
        Mutation("page-that-is-gone-is-zeros", "Pager::look_whether_there",
                 Replace("self.paged.poison(fault.page as usize)",
                         "self.paged.install(fault.page as usize, &[0; PAGE_BYTES]).is_ok()"),
                 integration("region", "who_takes_pages_away")),
        Mutation("lost-page-is-zeros", "Pager::fetched",
                 Replace("self.poison(first)", "self.install(first, &[0; PAGE_BYTES])"),
                 integration("region", "who_touches_a_page_that_all_nodes_lost")),
        Mutation("region-without-its-pager", "PagedMemory::drop",
                 Replace("MprotectFlags::empty()", "MprotectFlags::READ | MprotectFlags::WRITE"),
                 unit("without_its_pager")),
        Mutation("page-changed-before-it-is-saved", "Pager::let_write",
                 Replace("!self.save_resident(fault.page)", "false"),
                 integration("region", "a_snapshot_is_of_one_moment")),
        Mutation("region-inherited-by-forks", "Mapping::new",
                 Replace("madvise(start, len_bytes, Advice::LinuxDontFork)?;", ""),
                 integration("region", "a_forked_child")),

        Mutation("way-to-a-dead-process-kept", "Pending::leads_nowhere", Replace("!outlet.is_current()", "false"),
                 integration("ways_left", "ways_to_processes_that_ended")),
        Mutation("chain-to-another-destination", "QueuePair::remove_address", Delete("self.serial = next_serial()"),
                 integration("queue_pairs", "a_chain_to_a_destination_that_was_taken_away")),

        # What a client's calls become, and what a server tells.
        Mutation("answer-that-nobody-is-told-of", "ServerEnd::look_for_answers",
                 Delete("self.must_tell |= self.tells && self.session.has_answers()"),
                 integration("deferred", "an_answer_before_the_client_sleeps")),
        Mutation("unknown-outcome-called-again", "servers::may_go_elsewhere",
                 Replace("CallError::NotSent(_) => true",
                         "CallError::NotSent(_) | CallError::OutcomeUnknown(_) => true"),
                 integration("servers", "a_call_whose_outcome_is_unknown")),
        Mutation("method-of-another-version-called", "Incoming::arguments",
                 Replace("u32::from_le_bytes(*theirs) != fingerprint", "false"),
                 integration("service", "each_call_is_checked")),
        Mutation("stranger-not-counted", "ListenThread::refuse", Delete("self.counters.refused.increment()"),
                 Check(("-p", "farcall-cli", "--test", "service", "watched"))),

        # Connections with other hosts: how many, and whether their ends are told.
        Mutation("half-open-without-bound", "Count::is_below", Replace("self.half_open < limits.half_open", "true"),
                 Check(("--test", "drop_in", "a_host_that_asks_without_end"))),
        Mutation("nobody-speaks-for-the-dead", "ConnectionManager::speak_for_the_dead",
                 Delete("self.speak_for(&noted, None)"), Check(("--test", "drop_in", "who_is_killed_is_spoken_for"))),

        # What outlives the process that serves files, records and captures.
        Mutation("answer-of-the-last-process-forgotten", "Replay::remember",
                 Delete("self.replies.push_back((unique, reply))"), unit("the_next_process_has_the_same_tree")),
        Mutation("half-a-record-replayed", "journal::next_record", Replace("is_whole.then_some(bytes)", "Some(bytes)"),
                 unit("a_record_that_is_not_whole")),
        Mutation("snapshot-read-beyond-its-age", "Snapshots::get",
                 Replace("held.until > Instant::now()", "held.until.elapsed() < Duration::MAX"),
                 integration("grpc_kv", "a_snapshot_that_is_too_old")),
        Mutation("length-behind-a-block-not-read", "pcapng::next_block",
                 Replace("body.split_off(whole_bytes - AROUND_BYTES) != len_bytes.to_le_bytes()",
                         "body.split_off(whole_bytes - AROUND_BYTES).is_empty()"),
                 unit("a_block_whose_two_lengths_differ")),
        Mutation("interface-behind-a-packet-taken", "Part::advance", Replace("&& !self.has_packets()", ""),
                 unit("an_interface_behind_a_packet")),
        Mutation("range-with-its-end", "OrderedStore::scan", Replace("Bound::Excluded(end)", "Bound::Included(end)"),
                 integration("grpc_kv", "model")),
    ]


# One of each kind of check.
DEFAULT = ("bounds-not-checked", "arming-without-its-fence", "told-before-it-landed")


@dataclasses.dataclass(frozen=True)
class Applied:
    """A mutation that was found in the sources."""

    mutation: Mutation
    file: pathlib.Path
    lines: range
    text: str
    check: Check


def apply(mutation):
    """Finds the function and makes the edit, in memory."""
    function, text = edited(ROOT, mutation.function, mutation.edit)
    source = function.file.read_text()
    lines = range(source.count("\n", 0, function.start) + 1, source.count("\n", 0, function.end) + 2)
    return Applied(mutation, function.file, lines, text, mutation.check.of_package(package_of(function.file)))


def apply_all(mutations):
    """Applies all mutations, or ends the program with the names of those that no longer fit."""
    applied, errors = [], []
    for mutation in mutations:
        try:
            applied.append(apply(mutation))
        except LookupError as error:
            errors.append(f"{mutation.name}: {error}")
    if errors:
        sys.exit("\n".join([*errors, "The code has changed, so must these mutations."]))
    return applied


def changed_lines(base):
    """For every file that changed between `base` and HEAD, the lines that changed."""
    diff = subprocess.run(["git", "diff", "--unified=0", "--no-color", base, "HEAD", "--", "*.rs"], cwd=ROOT,
                          capture_output=True, text=True, check=True).stdout
    changed, file = {}, None
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = changed.setdefault(ROOT / line[6:], [])
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            file.append(range(first, first + max(count, 1)))
    return changed


def of_changed_files(applied, base):
    """Those in files that changed, those in functions that changed first."""
    changed = changed_lines(base)
    chosen = [entry for entry in applied if entry.file in changed]
    overlaps = lambda entry: any(
        hunk.start < entry.lines.stop and entry.lines.start < hunk.stop for hunk in changed[entry.file])
    return sorted(chosen, key=lambda entry: (not overlaps(entry), str(entry.check)))


def part(text):
    number, count = map(int, text.split("/"))
    if not 1 <= number <= count:
        raise ValueError
    return number, count


def part_of(applied, number, count):
    """The part `number` of `count`: each mutation is in one part, and those of one check are neighbours."""
    in_order = sorted(applied, key=lambda entry: str(entry.check))
    bounds = [len(in_order) * bound // count for bound in (number - 1, number)]
    return in_order[slice(*bounds)]


def try_unchanged(check, folder):
    """Returns for how long the check may run with a mutation; 0 if it fails without one, or runs no test."""
    compiles, output = check.run(folder, build_only=True)
    began = time.monotonic()
    passes, output = check.run(folder, CHECK_SECONDS_MAX) if compiles else (False, output)
    if not passes:
        print(f"{check}\nfails without any mutation:\n{output[-4000:]}", flush=True)
        return 0
    if sum(map(int, re.findall(r"^running (\d+) test", output, re.MULTILINE))) == 0:
        print(f"{check}\nruns no test: name the tests that notice the mutation", flush=True)
        return 0
    return max(CHECK_SECONDS, CHECK_TIMES * (time.monotonic() - began))


def try_all(applied, folder, seconds):
    """Tries mutations one by one in `folder`. Returns the names of those not noticed and of those not tried."""
    seconds_of, survived, left = {}, [], []
    began = time.monotonic()
    for entry in applied:
        name, check = entry.mutation.name, entry.check
        if seconds and time.monotonic() - began > seconds:
            left.append(name)
            continue
        if check not in seconds_of:
            seconds_of[check] = try_unchanged(check, folder)
        if not seconds_of[check]:
            survived.append(name)
            continue
        file = folder / entry.file.relative_to(ROOT)
        before = file.read_text()
        try:
            file.write_text(entry.text)
            compiles, output = check.run(folder, build_only=True)
            passes, _ = check.run(folder, seconds_of[check]) if compiles else (True, "")
        finally:
            file.write_text(before)
        if not compiles:
            print(f"{name} does not compile, so nothing can notice it:\n{output[-4000:]}", flush=True)
        print(f"{'NOT NOTICED' if passes else 'noticed':12} {name}: {check}", flush=True)
        if passes:
            survived.append(name)
    return survived, left


def run(applied, here, seconds):
    """Runs the mutations where they may be made."""
    if here:
        if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, check=True).stdout:
            sys.exit("--here changes files: commit first")
        os.environ.setdefault("CARGO_TARGET_DIR", str(ROOT / "target"))
        return try_all(applied, ROOT, seconds)
    scratch = pathlib.Path(tempfile.mkdtemp())
    try:
        clone = scratch / "farcall"
        subprocess.run(["git", "clone", "-q", "--no-local", str(ROOT), str(clone)], check=True)
        os.environ.setdefault("CARGO_TARGET_DIR", str(clone / "target"))
        return try_all(applied, clone, seconds)
    finally:
        shutil.rmtree(scratch)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--changed", metavar="BASE")
    parser.add_argument("--default", action="store_true")
    parser.add_argument("--part", type=part)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--here", action="store_true")
    options = parser.parse_args()
    mutations = all_mutations()
    names = set(options.names) | (set(DEFAULT) if options.default else set())
    if unknown := names - {mutation.name for mutation in mutations}:
        sys.exit(f"no such mutation: {', '.join(sorted(unknown))}")
    # All are looked for: one that does not apply is a failure even where it is not chosen.
    chosen = apply_all(mutations)
    if names:
        chosen = [entry for entry in chosen if entry.mutation.name in names]
    if options.changed:
        chosen = of_changed_files(chosen, options.changed)
    if options.part:
        chosen = part_of(chosen, *options.part)
    if options.list:
        for entry in chosen:
            print(f"{entry.mutation.name}  {entry.file.relative_to(ROOT)}  ({entry.check})")
        return
    survived, left = run(chosen, options.here, options.seconds)
    if left:
        print(f"Not tried, for lack of time: {', '.join(left)}")
    if survived:
        sys.exit(f"not noticed: {', '.join(survived)}")
    print(f"All {len(chosen) - len(left)} mutations that were tried are noticed, of {len(mutations)}.")


if __name__ == "__main__":
    main()
