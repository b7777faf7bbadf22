//! Functions that programs call through tables in the objects, while calls are traced. Without a trace the tables
//! contain the functions themselves, so there is no cost.

use std::ffi::{c_int, c_uint};

use farcall_trace::{Argument, Call, Hint, OtherArguments, Phase, now_ns, receives, requests, trace_call};
use farcall_verbs::{QpType, RecvWr, SendWr, Wc};

use crate::cq::{self, CqObject};
use crate::{context, cq_create, cq_ex, qp, qp_create, qp_ex, srq};
use farcall_layout::{
    Context, Cq, CqEx, CqInitAttrEx, DeviceAttrEx, PortAttr, Qp, QpEx, QpInitAttrEx, Srq, VerbsContext,
};

/// Stores the tracing functions in a context's tables.
pub fn context_table(tables: &mut VerbsContext) {
    tables.query_port = query_port;
    tables.query_device_ex = query_device_ex;
    tables.create_qp_ex = create_qp_ex;
    tables.create_cq_ex = create_cq_ex;
    let ops = &mut tables.context.ops;
    ops.poll_cq = poll_cq;
    ops.req_notify_cq = req_notify_cq;
    ops.post_send = post_send;
    ops.post_recv = post_recv;
    ops.post_srq_recv = Some(post_srq_recv);
}

/// Stores the tracing functions in an extended queue pair.
pub fn qp_table(qp: &mut QpEx) {
    qp.wr_complete = wr_complete;
    qp.wr_abort = wr_abort;
}

/// Stores the tracing functions in an extended completion queue.
pub fn cq_table(cq: &mut CqEx) {
    cq.start_poll = start_poll;
    cq.next_poll = next_poll;
}

unsafe extern "C" fn query_port(
    context: *mut Context,
    port_num: u8,
    attr: *mut PortAttr,
    len_bytes: usize,
) -> c_int {
    // SAFETY: contract of `ibv_query_port` (man page), which is that of `context::query_port`.
    let run = || unsafe { context::query_port(context, port_num, attr, len_bytes) };
    trace_call!(ibv_query_port(context, port_num, attr), run)
}

unsafe extern "C" fn query_device_ex(
    context: *mut Context,
    input: *const c_uint,
    attr: *mut DeviceAttrEx,
    len_bytes: usize,
) -> c_int {
    // SAFETY: contract of `ibv_query_device_ex` (man page), which is that of `context::query_device_ex`.
    let run = || unsafe { context::query_device_ex(context, input, attr, len_bytes) };
    trace_call!(ibv_query_device_ex(context, len_bytes), run)
}

unsafe extern "C" fn create_qp_ex(context: *mut Context, attr: *mut QpInitAttrEx) -> *mut Qp {
    // SAFETY: contract of `ibv_create_qp_ex` (man page), which is that of `qp_create::create_ex`.
    let run = || unsafe { qp_create::create_ex(context, attr) };
    trace_call!(ibv_create_qp_ex(context, attr), run)
}

unsafe extern "C" fn create_cq_ex(context: *mut Context, attr: *mut CqInitAttrEx) -> *mut CqEx {
    // SAFETY: contract of `ibv_create_cq_ex` (man page), which is that of `cq_create::create_ex`.
    let run = || unsafe { cq_create::create_ex(context, attr) };
    trace_call!(ibv_create_cq_ex(context, attr), run)
}

/// Writes an object as an argument.
fn add_argument(call: &mut Call, name: &'static str, object: impl Argument) {
    call.add_argument(name, |line| {
        let hint = Hint { call: "", name, others: OtherArguments::default(), phase: Phase::Given };
        // SAFETY: the callers pass integers, or objects that are live by the man page of the call.
        unsafe { object.format(line, &hint) }
    });
}

/// Writes the completions of a poll, and the number of empty polls before it.
fn poll_result(call: &mut Call, of: &CqObject, wcs: &[Wc]) {
    if !wcs.is_empty() {
        call.result("wc", |line| farcall_trace::completions(line, wcs));
    }
    let empty = of.empty_polls.take();
    if empty > 0 {
        call.result("empty_polls_before", |line| line.number(empty));
    }
}

unsafe extern "C" fn poll_cq(cq: *mut Cq, num_entries: c_int, wc: *mut Wc) -> c_int {
    let began_ns = now_ns();
    // SAFETY: contract of `ibv_poll_cq` (man page): `cq` is live, and `wc` has `num_entries` elements.
    let (taken, of) = unsafe { (cq::poll(cq, num_entries, wc), cq::object(cq.cast())) };
    if taken == 0 {
        // SAFETY: contract of `ibv_poll_cq` (man page): `cq` is live.
        of.empty_polls.add(unsafe { (*cq).handle });
        return 0;
    }
    let Some(mut call) = Call::begun_at("ibv_poll_cq", began_ns) else { return taken };
    add_argument(&mut call, "cq", cq);
    add_argument(&mut call, "num_entries", num_entries);
    // SAFETY: the result is an integer, which satisfies `Returned::format_result`.
    unsafe { call.returned(taken) };
    let wcs = match usize::try_from(taken) {
        // SAFETY: `cq::poll` has written `taken` elements.
        Ok(taken) => unsafe { std::slice::from_raw_parts(wc, taken) },
        Err(_) => &[],
    };
    poll_result(&mut call, of, wcs);
    call.end();
    taken
}

/// Traces a poll of one completion by `ibv_start_poll` or `ibv_next_poll`.
///
/// # Safety
/// `cq` must be a live queue of the program, polled by the calling thread.
unsafe fn poll_one(name: &'static str, cq: *mut CqEx, advance: impl FnOnce() -> c_int) -> c_int {
    let began_ns = now_ns();
    let number = advance();
    // SAFETY: contract of this function: `cq` is live.
    let of = unsafe { cq::object(cq.cast::<CqObject>()) };
    if number == libc::ENOENT {
        of.empty_polls.add(of.cq.base.handle);
        return number;
    }
    let Some(mut call) = Call::begun_at(name, began_ns) else { return number };
    add_argument(&mut call, "cq", cq);
    // SAFETY: the result is an integer, which satisfies `Returned::format_result`.
    unsafe { call.returned(number) };
    let wcs = std::slice::from_ref(&of.current);
    poll_result(&mut call, of, if number == 0 { wcs } else { &[] });
    call.end();
    number
}

unsafe extern "C" fn start_poll(cq: *mut CqEx, attr: *mut c_uint) -> c_int {
    // SAFETY: contract of `ibv_start_poll` (man page): `cq` is live, only this thread polls it, and `attr` is null or
    // valid.
    unsafe { poll_one("ibv_start_poll", cq, || cq_ex::start_poll(cq, attr)) }
}

unsafe extern "C" fn next_poll(cq: *mut CqEx) -> c_int {
    // SAFETY: contract of `ibv_next_poll` (man page): `cq` is live, and only this thread polls it.
    unsafe { poll_one("ibv_next_poll", cq, || cq_ex::next_poll(cq)) }
}

unsafe extern "C" fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
    // SAFETY: contract of `ibv_req_notify_cq` (man page): `cq` is live.
    let run = || unsafe { cq::req_notify(cq, solicited_only) };
    trace_call!(ibv_req_notify_cq(cq, solicited_only), run)
}

unsafe extern "C" fn post_send(
    qp: *mut Qp,
    wr: *mut SendWr<'static>,
    bad_wr: *mut *mut SendWr<'static>,
) -> c_int {
    let Some(mut call) = Call::begin("ibv_post_send") else {
        // SAFETY: contract of `ibv_post_send` (man page), which is that of `qp::post_send`.
        return unsafe { qp::post_send(qp, wr, bad_wr) };
    };
    add_argument(&mut call, "qp", qp);
    // SAFETY: contract of `ibv_post_send` (man page): `qp` is live.
    let is_datagram = unsafe { (*qp).qp_type } == QpType::Ud as u32;
    // SAFETY: contract of `ibv_post_send` (man page): the chain is valid.
    call.add_argument("wr", |line| unsafe { requests(line, wr, is_datagram) });
    call.executes();
    // SAFETY: contract of `ibv_post_send` (man page), which is that of `qp::post_send`.
    let number = unsafe { qp::post_send(qp, wr, bad_wr) };
    // SAFETY: the result is an integer, which satisfies `Returned::format_result`.
    unsafe { call.returned(number) };
    if number != 0 {
        // SAFETY: on failure `qp::post_send` has stored the refused request in `bad_wr`.
        call.result("bad_wr_id", |line| line.hex(unsafe { (**bad_wr).wr_id }));
    }
    call.end();
    number
}

/// Traces a call that posts receives.
///
/// # Safety
/// The arguments must be valid by `man ibv_post_recv`.
unsafe fn post_receives(
    mut call: Call,
    wr: *mut RecvWr<'static>,
    bad_wr: *mut *mut RecvWr<'static>,
    post: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: contract of this function: the chain is valid.
    call.add_argument("wr", |line| unsafe { receives(line, wr) });
    call.executes();
    let number = post();
    // SAFETY: the result is an integer, which satisfies `Returned::format_result`.
    unsafe { call.returned(number) };
    if number != 0 {
        // SAFETY: on failure `post` has stored the refused receive in `bad_wr`.
        call.result("bad_wr_id", |line| line.hex(unsafe { (**bad_wr).wr_id }));
    }
    call.end();
    number
}

unsafe extern "C" fn post_recv(
    qp: *mut Qp,
    wr: *mut RecvWr<'static>,
    bad_wr: *mut *mut RecvWr<'static>,
) -> c_int {
    // SAFETY: contract of `ibv_post_recv` (man page), which is that of `qp::post_recv`.
    let run = || unsafe { qp::post_recv(qp, wr, bad_wr) };
    let Some(mut call) = Call::begin("ibv_post_recv") else { return run() };
    add_argument(&mut call, "qp", qp);
    // SAFETY: contract of `ibv_post_recv` (man page): `wr` and `bad_wr` are valid.
    unsafe { post_receives(call, wr, bad_wr, run) }
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut Srq,
    wr: *mut RecvWr<'static>,
    bad_wr: *mut *mut RecvWr<'static>,
) -> c_int {
    // SAFETY: contract of `ibv_post_srq_recv` (man page), which is that of `srq::post_recv`.
    let run = || unsafe { srq::post_recv(srq, wr, bad_wr) };
    let Some(mut call) = Call::begin("ibv_post_srq_recv") else { return run() };
    add_argument(&mut call, "srq", srq);
    // SAFETY: contract of `ibv_post_srq_recv` (man page): `wr` and `bad_wr` are valid.
    unsafe { post_receives(call, wr, bad_wr, run) }
}

unsafe extern "C" fn wr_complete(qp: *mut QpEx) -> c_int {
    // SAFETY: contract of `ibv_wr_complete` (man page): `qp` is live, and this thread has called `ibv_wr_start`.
    let run = || unsafe { qp_ex::wr_complete(qp) };
    let Some(mut call) = Call::begin("ibv_wr_complete") else { return run() };
    add_argument(&mut call, "qp", qp);
    // SAFETY: contract of `ibv_wr_complete` (man page): `qp` is live.
    let is_datagram = unsafe { (*qp).qp_base.qp_type } == QpType::Ud as u32;
    call.add_argument("wr", |line| {
        // SAFETY: contract of `ibv_wr_complete` (man page): this thread has called `ibv_wr_start`.
        let mut batch = unsafe { qp_ex::building(qp) };
        line.list(batch.requests(), |line, request| farcall_trace::request(line, &request, is_datagram));
    });
    call.executes();
    let number = run();
    // SAFETY: the result is an integer, which satisfies `Returned::format_result`.
    unsafe { call.returned(number) };
    call.end();
    number
}

unsafe extern "C" fn wr_abort(qp: *mut QpEx) {
    // SAFETY: contract of `ibv_wr_abort` (man page): `qp` is live, and this thread has called `ibv_wr_start`.
    let run = || unsafe { qp_ex::wr_abort(qp) };
    trace_call!(ibv_wr_abort(qp), run)
}
