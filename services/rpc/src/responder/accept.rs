//! Accepting a connection: a client's hello is answered with a welcome or a refusal.

use std::sync::Arc;

use farcall_link::bootstrap::{
    Features, Grants, Hello, QpInfo, Refusal, RefusalKind, Resumed, Secret, SessionId, SessionResumption,
    Welcome,
};
use farcall_link::{
    Connection, Geometry, Plan, PolledWord, QpSizes, RemoteRegion, RequestPath, ResponsePath, Ticket,
    Transport,
};
use farcall_verbs::{Access, Clock, Nanos, with_sources};

use super::doorbell_bytes::DoorbellByte;
use super::drain::Phase;
use super::engine::Engine;
use super::session::Session;
use super::shared_ud_qp::ReplyTo;
use super::{ConnectionId, DedicatedQp, Handler, Open, Responder, ServerConnection};
use crate::error::Broken;
use crate::inbox::Inbox;
use crate::paths::for_plan;
use crate::wire::TailKey;

/// Maximum number of wake-ups in flight from a client in excess of one for each message.
const SPARE_WAKES: u32 = 16;

/// Returns the number of slots of a mailbox. Where requests are received by SEND, a wake-up also consumes a receive,
/// and therefore a slot.
const fn mailbox_slots(plan: &Plan) -> usize {
    let spare = if matches!(plan.request, RequestPath::Send) { SPARE_WAKES } else { 0 };
    plan.geometry.window as usize + spare as usize
}

/// Resources of a connection: how the client is reached, and where its messages arrive.
struct ClientTransport {
    dedicated_qp: Option<DedicatedQp>,
    inbox: Inbox,
    reply_to: Option<ReplyTo>,
    byte: Option<(DoorbellByte, RemoteRegion)>,
    qp: QpInfo,
}

/// Converts a local failure into a refusal.
fn no_resources(what: &str) -> impl Fn(farcall_verbs::Error) -> Refusal + '_ {
    move |error| RefusalKind::Resources.because(format!("{what}: {}", with_sources(&error)))
}

impl<H: Handler, C: Clock> Responder<H, C> {
    /// Opens a connection, or resumes a session over a new one. All fields of the hello are checked before use.
    ///
    /// # Errors
    /// Returns the refusal for the client. Nothing has changed then.
    pub fn accept(&mut self, hello: &Hello, now: Nanos) -> Result<(ConnectionId, Welcome), Refusal> {
        let plan = self.check(hello)?;
        let Some(paths) = for_plan!(plan, |P| Engine::<H, C>::path_vtable::<P>()) else {
            return Err(RefusalKind::Plan.because("the preset's paths are not built in"));
        };
        let (session, resumed) = match &hello.resume {
            Some(resume) => match self.take_session(resume, now)? {
                Some(session) => {
                    let next_seq = session.expect.0;
                    (session, Some(Resumed { next_seq }))
                }
                None => (self.new_session(plan)?, None),
            },
            None => (self.new_session(plan)?, None),
        };
        // A session keeps the slots with which it began.
        let plan = Plan { geometry: session.geometry, ..plan };
        let expect = session.expect;
        match self.connect(hello, plan, session) {
            Ok((end, welcome)) => {
                let welcome = Welcome { resumed, ..welcome };
                let id = end.id;
                if let Some(dedicated_qp) = &end.dedicated_qp {
                    self.by_qp.insert(dedicated_qp.connection.qp_num(), id);
                }
                self.by_tag.insert(end.session.id.tag(), id);
                self.receiving += usize::from(paths.is_completion_driven);
                self.poll_table.push(self.connections.len(), &end);
                self.connections.push(Open { end, paths });
                self.engine.counters.connections_opened.increment();
                if resumed.is_some() {
                    self.engine.counters.sessions_resumed.increment();
                }
                debug_assert_eq!(welcome.resumed.map(|r| r.next_seq), resumed.map(|_| expect.0));
                Ok((id, welcome))
            }
            Err(failed) => {
                let (refusal, session) = *failed;
                if resumed.is_some() {
                    let expires = now + self.engine.config.session_linger;
                    self.detached.push(super::DetachedSession { session, expires });
                }
                Err(refusal)
            }
        }
    }

    fn check(&self, hello: &Hello) -> Result<Plan, Refusal> {
        let config = &self.engine.config;
        if self.phase != Phase::Serving {
            return Err(RefusalKind::GoingAway.because("the server drains"));
        }
        if hello.provider != self.nic.provider() {
            return Err(RefusalKind::Provider.because(format!(
                "the client is on {}, the server on {}",
                hello.provider,
                self.nic.provider()
            )));
        }
        let preset = hello.plan.preset().map_err(|refused| RefusalKind::Plan.because(refused.to_string()))?;
        if !config.presets.iter().any(|offered| offered.name == preset.name) {
            let offered: Vec<&str> = config.presets.iter().map(|preset| preset.name).collect();
            let why = format!("{} is not offered here; there are: {}", preset.name, offered.join(", "));
            return Err(RefusalKind::Plan.because(why));
        }
        hello.plan.geometry.check().map_err(|why| RefusalKind::OutOfRange.because(why))?;
        let mut geometry = hello.plan.geometry.min(config.geometry_max);
        if hello.plan.request == RequestPath::DenseMailbox {
            geometry.window = geometry.window.min(Geometry::WINDOW_OF_BYTE_MAX);
        }
        if ![config.thread, Hello::ANY_THREAD].contains(&hello.thread) {
            return Err(RefusalKind::NoSuchThread.because(format!(
                "thread {} of {}; here is {}",
                hello.thread, config.threads, config.thread
            )));
        }
        if !hello.features.contains(Features::KICK) {
            return Err(RefusalKind::Malformed
                .because("every version can KICK, but this client reports that it cannot"));
        }
        if !hello.grants.messages.holds(0, geometry.responses_bytes() as u64) {
            return Err(RefusalKind::OutOfRange.because(format!(
                "the client grants {} bytes for replies; its slots take {}",
                hello.grants.messages.len_bytes,
                geometry.responses_bytes()
            )));
        }
        if self.connections.len() >= config.connections_max {
            return Err(RefusalKind::TooManyConnections.because(format!(
                "{} connections on thread {}",
                self.connections.len(),
                config.thread
            )));
        }
        // Before memory is allocated for the client, and before anything is disclosed to it.
        self.nic.context().check_owner(hello.qp.gid(), hello.qp.qp_num).map_err(no_resources("client"))?;
        let plan = Plan { geometry, ..hello.plan };
        if plan.response != ResponsePath::Datagram {
            return Ok(plan);
        }
        let Some(client) = &hello.datagrams else {
            return Err(
                RefusalKind::Malformed.because("results as datagrams, and no queue pair that takes them")
            );
        };
        // The same check for the queue pair that results are sent to.
        self.nic.context().check_owner(client.gid(), client.qp_num).map_err(no_resources("client"))?;
        Ok(plan.with_mtu(self.nic.mtu().min(client.mtu())))
    }

    /// Returns the session that a client wants to resume; `None` if it is unknown (discarded, or of an earlier start).
    fn take_session(&mut self, resume: &SessionResumption, now: Nanos) -> Result<Option<Session>, Refusal> {
        if resume.incarnation != self.incarnation {
            return Ok(None);
        }
        // The client may have noticed the loss of the connection before the server.
        let live = self.connections.iter().position(|open| open.end.session.id == resume.session);
        if let Some(at) = live {
            same_secret(&self.connections[at].end.session, resume)?;
            self.end(at, Broken::HungUp, None, Some(now));
        }
        // Flushed work requests may complete after all others.
        while self.still_drains(resume) && self.poll_completions(now) {}
        if self.still_drains(resume) {
            return Err(RefusalKind::Resources.because("the old connection still drains"));
        }
        let Some(at) = self.detached.iter().position(|detached| detached.session.id == resume.session) else {
            return Ok(None);
        };
        same_secret(&self.detached[at].session, resume)?;
        let session = self.detached.remove(at).session;
        session.clear_mailbox();
        Ok(Some(session))
    }

    /// Creates a session id with a tag that no other session of this thread has, because datagrams contain only the
    /// tag.
    fn new_session_id(&self) -> Result<SessionId, Refusal> {
        let ends = self.connections.iter().map(|open| &open.end).chain(&self.closing);
        let detached = self.detached.iter().map(|detached| &detached.session);
        let taken: Vec<u32> = ends.map(|end| &end.session).chain(detached).map(|s| s.id.tag()).collect();
        loop {
            let id = SessionId(self.random()?).at_thread(self.engine.config.thread);
            if !taken.contains(&id.tag()) {
                return Ok(id);
            }
        }
    }

    fn random(&self) -> Result<[u8; 16], Refusal> {
        let bytes = self.nic.entropy().bytes();
        bytes.map_err(|e| RefusalKind::Resources.because(e.to_string()))
    }

    fn still_drains(&self, resume: &SessionResumption) -> bool {
        self.closing.iter().any(|closing| closing.session.id == resume.session)
    }

    /// Frees memory for a session's slots by discarding sessions that wait for their client.
    fn free_memory(&mut self, slots_bytes: usize) -> Result<(), Refusal> {
        let open = self.connections.iter().map(|open| &open.end).chain(&self.closing);
        let open_bytes: usize = open.map(|end| end.session.slots_bytes()).sum();
        let wanted_bytes = open_bytes + slots_bytes;
        let max_bytes = self.engine.config.slots_bytes_max;
        if wanted_bytes > max_bytes {
            let connections = self.connections.len();
            let why =
                format!("the slots of {connections} connections take {open_bytes} bytes of {max_bytes}");
            return Err(RefusalKind::TooManyConnections.because(why));
        }
        let mut detached_bytes: usize =
            self.detached.iter().map(|detached| detached.session.slots_bytes()).sum();
        while wanted_bytes + detached_bytes > max_bytes && !self.detached.is_empty() {
            detached_bytes -= self.detached.remove(0).session.slots_bytes();
        }
        Ok(())
    }

    fn new_session(&mut self, plan: Plan) -> Result<Session, Refusal> {
        let geometry = plan.geometry;
        let mailbox_bytes = mailbox_slots(&plan) * geometry.request_slot_bytes as usize;
        self.free_memory(mailbox_bytes + geometry.responses_bytes())?;
        let (id, secret, key) = (self.new_session_id()?, self.random()?, self.random()?);
        let tail_key = TailKey(u128::from_le_bytes(key) as u64);
        let regions = Session::regions(&self.nic, self.next_id, mailbox_bytes, geometry.responses_bytes())
            .map_err(no_resources("memory"))?;
        Ok(Session::new(id, secret, tail_key, geometry, regions))
    }

    /// Returns the destination of results that are sent as datagrams, if the plan uses them.
    fn reply_to(
        &mut self,
        hello: &Hello,
        plan: &Plan,
        session: &Session,
    ) -> Result<Option<ReplyTo>, Refusal> {
        let (ResponsePath::Datagram, Some(client)) = (plan.response, &hello.datagrams) else {
            return Ok(None);
        };
        if plan.with_mtu(self.nic.mtu().min(client.mtu())) != *plan {
            let bytes = plan.geometry.response_slot_bytes;
            let why = format!(
                "the session has response slots of {bytes} bytes, more than a datagram; open another one"
            );
            return Err(RefusalKind::OutOfRange.because(why));
        }
        let shared_ud_qp = &mut self.engine.shared_ud_qp;
        let added = shared_ud_qp.add(&self.nic, &*self.cq, plan.memory, client, &session.results);
        added.map(Some).map_err(no_resources("datagrams"))
    }

    /// Creates and connects the queue pair, or makes the client share the thread's. On failure the session is
    /// returned.
    fn connect(
        &mut self,
        hello: &Hello,
        plan: Plan,
        session: Session,
    ) -> Result<(ServerConnection, Welcome), Box<(Refusal, Session)>> {
        match self.reach(hello, &plan, &session) {
            Ok(reached) => Ok(self.connected(hello, plan, session, reached)),
            Err(refusal) => Err(Box::new((refusal, session))),
        }
    }

    fn reach(&mut self, hello: &Hello, plan: &Plan, session: &Session) -> Result<ClientTransport, Refusal> {
        let (dedicated_qp, inbox, qp) = if plan.transport == Transport::Ud {
            let pair = &mut self.engine.shared_ud_qp;
            let qp = pair.listen(&self.nic, &*self.cq, plan.memory).map_err(no_resources("datagrams"))?;
            (None, Inbox::none(), qp)
        } else {
            let (dedicated_qp, inbox) =
                self.create_dedicated_qp(hello, plan, session).map_err(no_resources("queue pair"))?;
            let qp = dedicated_qp.connection.info(&self.nic);
            (Some(dedicated_qp), inbox, qp)
        };
        let reply_to = self.reply_to(hello, plan, session)?;
        let byte = match plan.request {
            RequestPath::DenseMailbox => {
                let (most, next) = (self.engine.config.connections_max, self.connections.len());
                Some(self.poll_table.bytes.add(&self.nic, most, next, session.expect)?)
            }
            _ => None,
        };
        Ok(ClientTransport { dedicated_qp, inbox, reply_to, byte, qp })
    }

    fn create_dedicated_qp(
        &self,
        hello: &Hello,
        plan: &Plan,
        session: &Session,
    ) -> Result<(DedicatedQp, Inbox), farcall_verbs::Error> {
        let window = u32::from(session.geometry.window);
        let config = QpSizes {
            send_depth: 4 * window + 64,
            recv_depth: window + SPARE_WAKES,
            sges_max: 1,
            signal_every: plan.memory.signal_every.clamp(1, session.geometry.window.max(2)),
            inline_max_bytes: plan.memory.inline_max_bytes,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
        };
        let mut connection = Connection::new(&self.nic, plan.transport, &*self.cq, config, None)?;
        let mailbox_id = connection.attach(Arc::clone(&session.mailbox));
        let results_id = connection.attach(Arc::clone(&session.results));
        let inbox = if plan.request == RequestPath::Send {
            let slot_bytes = session.geometry.request_slot_bytes;
            // A session that began under another preset may have fewer slots.
            let count = mailbox_slots(plan).min(session.mailbox.len_bytes() / slot_bytes as usize);
            Inbox::of_slots(&mut connection, mailbox_id, slot_bytes, count)?
        } else {
            Inbox::of_wakes(&mut connection, config.recv_depth)?
        };
        connection.connect(&self.nic, &hello.qp)?;
        Ok((DedicatedQp { connection, results_id, replies: hello.grants.messages }, inbox))
    }

    fn connected(
        &mut self,
        hello: &Hello,
        plan: Plan,
        mut session: Session,
        reached: ClientTransport,
    ) -> (ServerConnection, Welcome) {
        let ClientTransport { dedicated_qp, inbox, reply_to, byte, qp } = reached;
        let must_check = dedicated_qp
            .as_ref()
            .is_some_and(|dedicated_qp| !dedicated_qp.connection.places_in_order(&session.mailbox));
        let checksum =
            must_check || self.engine.config.checksum || hello.features.contains(Features::CHECKSUM);
        self.next_id += 1;
        session.deferred.set_supported(hello.features.contains(Features::DEFERRED));
        let used = hello.features & (Features::COMPACT | Features::DEFERRED | Features::ANSWERED);
        let features = Features::KICK | used | Features::checksum(checksum);
        let mailbox_byte = byte.as_ref().map(|(_, grant)| *grant);
        let welcome = Welcome { mailbox_byte, ..self.welcome_of(qp, &session, plan, features) };
        let end = ServerConnection {
            watch: PolledWord::new(Arc::clone(&session.mailbox), session.requests.offset(session.expect)),
            id: ConnectionId(self.next_id),
            dedicated_qp,
            inbox,
            byte: byte.map(|(byte, _)| byte),
            source_qp: hello.qp.qp_num,
            checksum,
            corrupt_checks: 0,
            reply_to,
            tickets: vec![Ticket::NONE; usize::from(session.geometry.window)].into(),
            push_end: session.expect,
            push_due: None,
            can_notify: used.contains(Features::ANSWERED),
            notify_next: false,
            notify_due: false,
            violation: None,
            keep_from: None,
            session,
        };
        (end, welcome)
    }

    fn welcome_of(&self, qp: QpInfo, session: &Session, plan: Plan, features: Features) -> Welcome {
        let config = &self.engine.config;
        Welcome {
            provider: self.nic.provider().to_owned(),
            qp,
            grants: Grants { messages: session.mailbox.remote(), results: session.results.remote() },
            plan,
            features,
            incarnation: self.incarnation,
            threads: config.threads,
            session: session.id,
            secret: Secret(session.secret),
            tail_key: Secret(session.tail_key.0),
            resumed: None,
            request_bytes_max: config.request_bytes_max,
            result_bytes_max: config.result_bytes_max,
            mailbox_byte: None,
        }
    }
}

/// Compares the secrets in constant time.
fn same_secret(session: &Session, resume: &SessionResumption) -> Result<(), Refusal> {
    let difference = session.secret.iter().zip(&resume.secret.0).fold(0, |all, (a, b)| all | (a ^ b));
    if difference == 0 {
        return Ok(());
    }
    Err(RefusalKind::WrongSecret.because(format!("session {:?}", session.id)))
}
