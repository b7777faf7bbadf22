//! Tests of both ends of a connection, which exchange frames directly, without a stream.

use proptest::prelude::*;

use super::*;
use crate::frame::{Frame, HEAD_BYTES, Head, Kind, Path, Writer};

const HELLO: Hello = Hello { version_min: 1, version_max: 1, calls_max: 4, window_bytes: 100 };

struct Ends {
    client: Calls,
    permits: Arc<Semaphore>,
    server: Calls,
}

/// Returns all frames that an end has to send.
fn sent_by(calls: &mut Calls) -> Vec<u8> {
    let mut all = Vec::new();
    let mut out = Outbound::default();
    while calls.has_queued() {
        calls.emit(&mut out);
        let pieces = out.segments().concat();
        all.extend_from_slice(&pieces);
        out.advance(pieces.len());
    }
    all
}

fn deliver(to: &mut Calls, mut bytes: &[u8]) -> Result<Vec<(Kind, u16)>, crate::frame::FrameError> {
    let mut kinds = Vec::new();
    while let Some(head) = bytes.first_chunk::<HEAD_BYTES>() {
        let head = Head::parse(head)?;
        kinds.push((head.kind, head.call));
        let Some(payload) = bytes.get(HEAD_BYTES..HEAD_BYTES + head.len_bytes) else { break };
        to.handle_frame(head, payload)?;
        bytes = &bytes[HEAD_BYTES + head.len_bytes..];
    }
    Ok(kinds)
}

impl Ends {
    fn new() -> Self {
        let (client, permits) = Calls::of_client(HELLO, HELLO);
        Self { client, permits, server: Calls::of_server(HELLO, HELLO, Arc::default()) }
    }

    fn deliver_to_server(&mut self) -> Vec<(Kind, u16)> {
        let bytes = sent_by(&mut self.client);
        deliver(&mut self.server, &bytes).unwrap()
    }

    fn deliver_to_client(&mut self) -> Vec<(Kind, u16)> {
        let bytes = sent_by(&mut self.server);
        deliver(&mut self.client, &bytes).unwrap()
    }

    fn accepted(&mut self) -> Vec<Accepted> {
        let mut accepted = Vec::new();
        self.server.take_accepted(&mut accepted);
        accepted
    }

    fn call(&mut self, data: &'static [u8], ending: Option<LocalEnd>) -> CallId {
        let id = self.client.open().unwrap();
        let headers = InitialHeaders::Call(PathAndQuery::from_static("/s/m"), HeaderMap::new());
        submit(&mut self.client, id, Some(headers), data, ending);
        id
    }
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn submit(
    calls: &mut Calls,
    id: CallId,
    headers: Option<InitialHeaders>,
    data: &'static [u8],
    ending: Option<LocalEnd>,
) {
    let mut part = Some(Submission { headers, data: Bytes::from_static(data), ending });
    assert!(matches!(calls.poll_submit(id, &context(), &mut part), Poll::Ready(Ok(()))));
}

fn answer(calls: &mut Calls, id: CallId, data: &'static [u8]) {
    let headers = InitialHeaders::Response(200, HeaderMap::new());
    submit(calls, id, Some(headers), data, Some(LocalEnd::Trailers(HeaderMap::new())));
}

#[test]
fn a_unary_call_is_one_frame_each_way() {
    let mut ends = Ends::new();
    for round in 0..10 {
        let id = ends.call(b"question", Some(LocalEnd::End));
        assert_eq!(ends.deliver_to_server(), [(Kind::Call, 0)]);
        let accepted = ends.accepted().pop().unwrap();
        assert_eq!(accepted.uri.path(), "/s/m");
        assert_eq!(accepted.request.as_deref(), Some(&b"question"[..]));
        answer(&mut ends.server, accepted.id, b"answer");
        assert_eq!(ends.deliver_to_client(), [(Kind::Response, 0)]);
        ends.server.on_sender_stopped(accepted.id);
        let Poll::Ready(Ok(answer)) = ends.client.poll_answer(id, &context()) else {
            panic!("round {round}")
        };
        assert_eq!(answer.rest.unwrap().0, "answer");
        assert!(!ends.client.has_any_open() && !ends.server.has_any_open());
    }
}

#[test]
fn sends_each_path_once() {
    let mut ends = Ends::new();
    ends.call(b"", Some(LocalEnd::End));
    ends.call(b"", Some(LocalEnd::End));
    let bytes = sent_by(&mut ends.client);
    assert_eq!(bytes.windows(4).filter(|bytes| bytes == b"/s/m").count(), 1);
    deliver(&mut ends.server, &bytes).unwrap();
    assert!(ends.accepted().iter().all(|accepted| accepted.uri.path() == "/s/m"));
}

/// The first call of a path is cancelled before it is sent, so its path must not count as defined.
#[test]
fn sends_nothing_of_a_call_cancelled_before_sending() {
    let mut ends = Ends::new();
    let id = ends.call(b"", Some(LocalEnd::End));
    ends.client.reset(id, Code::Cancelled, "");
    assert_eq!(ends.deliver_to_server(), []);
    assert!(!ends.client.has_any_open());
    ends.call(b"", Some(LocalEnd::End));
    assert_eq!(ends.deliver_to_server().len(), 1);
    assert_eq!(ends.accepted()[0].uri.path(), "/s/m");
}

#[test]
fn stops_a_sender_at_the_window_until_bytes_are_read() {
    let mut ends = Ends::new();
    let id = ends.call(&[7; 250], Some(LocalEnd::End));
    ends.deliver_to_server();
    let accepted = ends.accepted().pop().unwrap();
    assert!(accepted.request.is_none());
    let mut got = 0;
    while let Poll::Ready(Some(frame)) = ends.server.poll_frame(accepted.id, &context()) {
        let bytes = frame.unwrap().into_data().unwrap().len();
        assert!(bytes <= HELLO.window_bytes as usize, "{bytes} were kept");
        got += bytes;
        ends.deliver_to_client();
        ends.deliver_to_server();
    }
    assert_eq!(got, 250);
    // The call's end has been received: a late window update is ignored.
    let _waits = ends.client.poll_answer(id, &context());
    answer(&mut ends.server, accepted.id, b"");
    ends.deliver_to_client();
    assert!(matches!(ends.client.poll_answer(id, &context()), Poll::Ready(Ok(_))));
    assert!(!ends.client.has_any_open() && !ends.server.has_any_open());
}

#[test]
fn rejects_a_sender_that_exceeds_its_window() {
    let mut ends = Ends::new();
    ends.call(&[7; 100], None);
    ends.deliver_to_server();
    let accepted = ends.accepted().pop().unwrap();
    assert!(ends.server.poll_frame(accepted.id, &context()).is_ready());
    // The window update for the bytes read has not been sent yet.
    let mut more = Vec::new();
    let mut writer = Writer::begin(&mut more, Kind::Data, accepted.id.number);
    writer.put(&[7]);
    writer.finish(0);
    assert!(deliver(&mut ends.server, &more).is_err());
}

#[test]
fn reuses_a_number_after_both_ends_have_ended_its_call() {
    let mut ends = Ends::new();
    let id = ends.call(b"", Some(LocalEnd::End));
    ends.deliver_to_server();
    let accepted = ends.accepted().pop().unwrap();
    ends.client.reset(id, Code::Cancelled, "");
    // The number stays in use until the server has replied to the reset.
    let other = ends.call(b"", Some(LocalEnd::End));
    assert_ne!(other.number, id.number);
    ends.deliver_to_server();
    assert!(ends.server.poll_ended(accepted.id, &context()).is_ready());
    ends.server.on_sender_stopped(accepted.id);
    ends.deliver_to_client();
    let third = ends.call(b"", Some(LocalEnd::End));
    assert_eq!((third.number, third.generation), (id.number, id.generation + 1));
}

#[test]
fn a_lost_stream_ends_every_call() {
    let mut ends = Ends::new();
    let id = ends.call(b"", Some(LocalEnd::End));
    ends.client.fail_all(&Status::unavailable("lost"));
    let Poll::Ready(Err(status)) = ends.client.poll_answer(id, &context()) else { panic!("no answer") };
    assert_eq!(status.code(), Code::Unavailable);
    assert!(!ends.client.has_any_open());
    assert_eq!(ends.client.open().unwrap_err().code(), Code::Unavailable);
}

#[test]
fn bounds_cancelled_calls_that_do_not_end() {
    let mut ends = Ends::new();
    let (mut refused, mut working) = (0, Vec::new());
    for _ in 0..40 {
        let id = ends.call(b"", Some(LocalEnd::End));
        ends.deliver_to_server();
        // These calls are never finished.
        working.extend(ends.accepted());
        let bytes = sent_by(&mut ends.server);
        let mut rest = &bytes[..];
        while let Some(head) = rest.first_chunk::<HEAD_BYTES>() {
            let head = Head::parse(head).unwrap();
            let payload = &rest[HEAD_BYTES..HEAD_BYTES + head.len_bytes];
            let exhausted = Code::ResourceExhausted as i32 as u8;
            if let Ok(Frame::Reset { code, .. }) = Frame::parse(head, payload) {
                refused += usize::from(code == exhausted);
            }
            rest = &rest[HEAD_BYTES + head.len_bytes..];
        }
        deliver(&mut ends.client, &bytes).unwrap();
        ends.client.reset(id, Code::Cancelled, "");
        ends.deliver_to_server();
        ends.deliver_to_client();
    }
    assert_eq!((working.len(), refused), (8, 32));
}

#[test]
fn rejects_calls_and_notifies_the_client_when_draining() {
    let mut ends = Ends::new();
    ends.server.stop_accepting("enough");
    // A call that crosses with the goodbye.
    let id = ends.call(b"", Some(LocalEnd::End));
    ends.deliver_to_server();
    assert!(ends.accepted().is_empty());
    assert_eq!(ends.deliver_to_client(), [(Kind::Goodbye, 0), (Kind::Reset, 0)]);
    let Poll::Ready(Err(status)) = ends.client.poll_answer(id, &context()) else { panic!("no answer") };
    assert_eq!(status.code(), Code::Unavailable);
    assert!(ends.client.refuses_calls().is_some());
}

fn random_frame() -> impl Strategy<Value = Vec<u8>> {
    let parts = (0..12_u8, 0..5_u16, any::<bool>(), 0..6_u8, proptest::collection::vec(any::<u8>(), 0..100));
    parts.prop_map(|(kind, call, is_end, path, data)| {
        let mut out = Vec::new();
        let kinds = [
            Kind::Call,
            Kind::Response,
            Kind::Data,
            Kind::Trailers,
            Kind::Reset,
            Kind::Window,
            Kind::Goodbye,
        ];
        // Mostly data: an invalid frame ends the processing of later ones.
        let kind = kinds.get(usize::from(kind)).copied().unwrap_or(Kind::Data);
        let mut writer = Writer::begin(&mut out, kind, call);
        match kind {
            Kind::Call => {
                writer.path(match path {
                    0 => Path::Defined(0, "/s/m"),
                    1 => Path::Known(0),
                    _ => Path::Literal("/s/m"),
                });
                writer.u16(0);
                writer.put(&data);
            }
            Kind::Response => {
                writer.u16(200);
                writer.u16(0);
                writer.u16(0);
                writer.put(&data);
            }
            Kind::Data => writer.put(&data),
            Kind::Reset => writer.put(&[1]),
            Kind::Window => writer.put(&u32::from(call).to_le_bytes()),
            _ => {}
        }
        if is_end && matches!(kind, Kind::Call | Kind::Response | Kind::Data) {
            writer.end();
        }
        writer.finish(0);
        out
    })
}

/// A call at one end, in the model of the random test.
#[derive(Clone, Copy)]
struct Used {
    id: CallId,
    is_begun: bool,
    is_answered: bool,
    /// `true` once its reader is gone.
    is_left: bool,
}

impl Used {
    fn new(id: CallId) -> Self {
        Self { id, is_begun: false, is_answered: false, is_left: false }
    }

    fn submit(&mut self, calls: &mut Calls, headers: InitialHeaders, len: usize, ending: Option<LocalEnd>) {
        let headers = (!self.is_begun).then_some(headers);
        let part = Submission { headers, data: Bytes::from(vec![7; len]), ending };
        self.is_begun |= calls.poll_submit(self.id, &context(), &mut Some(part)).is_ready();
    }

    fn read(&mut self, client: &mut Calls) {
        if self.is_left {
        } else if self.is_answered {
            let polled = client.poll_frame(self.id, &context());
            self.is_left =
                matches!(&polled, Poll::Ready(frame) if !matches!(frame, Some(Ok(frame)) if frame.is_data()));
        } else if let Poll::Ready(answer) = client.poll_answer(self.id, &context()) {
            self.is_answered = true;
            self.is_left = !answer.is_ok_and(|answer| answer.rest.is_none());
        }
    }

    fn cancel(&mut self, client: &mut Calls) {
        if !std::mem::replace(&mut self.is_left, true) {
            client.reset(self.id, Code::Cancelled, "");
        }
    }
}

/// Two ends that comply with the protocol, and the users of their calls.
struct Users {
    ends: Ends,
    asked: Vec<Used>,
    answering: Vec<Used>,
}

impl Users {
    fn step(&mut self, (what, which, len, ends): (u8, usize, usize, bool)) {
        let Self { ends: Ends { client, server, permits }, asked, answering } = self;
        let (asks, answers) = (asked.len(), answering.len());
        let why = Status::internal("as asked");
        match what {
            0 => {
                if let Ok(permit) = permits.try_acquire() {
                    permit.forget();
                    asked.push(Used::new(client.open().unwrap()));
                }
            }
            1 if asks > 0 => {
                let headers = InitialHeaders::Call(PathAndQuery::from_static("/s/m"), HeaderMap::new());
                asked[which % asks].submit(client, headers, len, ends.then_some(LocalEnd::End));
            }
            2 if asks > 0 => client.fail(asked[which % asks].id, &why),
            3 if asks > 0 => asked[which % asks].cancel(client),
            4 if asks > 0 => client.on_sender_stopped(asked[which % asks].id),
            5 if asks > 0 => asked[which % asks].read(client),
            6 if answers > 0 => {
                let headers = InitialHeaders::Response(200, HeaderMap::new());
                let ending = ends.then(|| LocalEnd::Trailers(HeaderMap::new()));
                answering[which % answers].submit(server, headers, len, ending);
            }
            7 if answers > 0 => server.fail(answering[which % answers].id, &why),
            8 if answers > 0 => drop(server.poll_frame(answering[which % answers].id, &context())),
            9 if answers > 0 => server.on_sender_stopped(answering.swap_remove(which % answers).id),
            10 => drop(self.ends.deliver_to_server()),
            11 => drop(self.ends.deliver_to_client()),
            _ => {}
        }
        let accepted = self.ends.accepted();
        self.answering.extend(accepted.into_iter().map(|accepted| Used::new(accepted.id)));
    }
}

proptest! {
    /// For any sequence of operations at both ends: neither end violates the protocol, and when all users are done no
    /// call is open and every number is free.
    #[test]
    fn no_call_is_left_behind(
        steps in proptest::collection::vec((0..12_u8, 0..8_usize, 1..250_usize, any::<bool>()), 1..120)
    ) {
        let mut users = Users { ends: Ends::new(), asked: Vec::new(), answering: Vec::new() };
        for step in steps {
            users.step(step);
        }
        for used in &mut users.asked {
            used.cancel(&mut users.ends.client);
        }
        while users.ends.client.has_queued() || users.ends.server.has_queued() || !users.answering.is_empty() {
            users.step((10, 0, 1, false));
            users.step((11, 0, 1, false));
            users.step((9, 0, 1, false));
        }
        prop_assert!(!users.ends.client.has_any_open() && !users.ends.server.has_any_open());
        prop_assert_eq!(users.ends.permits.available_permits(), HELLO.calls_max.into());
    }

    /// For any input of a peer: an end returns an error or continues, and stores no more than its limits.
    #[test]
    fn bounds_memory_for_any_input(frames in proptest::collection::vec((random_frame(), any::<bool>()), 1..60)) {
        let mut ends = Ends::new();
        let opened: Vec<CallId> = (0..3).map(|_| ends.call(b"", None)).collect();
        sent_by(&mut ends.client);
        let mut accepted = Vec::new();
        let mut is_alive = [true, true];
        for (frame, reads) in frames {
            for (at, calls) in [&mut ends.client, &mut ends.server].into_iter().enumerate() {
                is_alive[at] = is_alive[at] && deliver(calls, &frame).is_ok();
                calls.take_accepted(&mut accepted);
                prop_assert!(calls.table.len() <= 4);
                prop_assert!(accepted.len() <= 60);
                for call in &calls.table {
                    prop_assert!(call.inbox.bytes.len() <= HELLO.window_bytes as usize);
                }
                if reads {
                    sent_by(calls);
                }
            }
            if reads {
                for id in &opened {
                    let _any = ends.client.poll_frame(*id, &context());
                }
                for accepted in &accepted {
                    let _any = ends.server.poll_frame(accepted.id, &context());
                }
            }
        }
    }
}
