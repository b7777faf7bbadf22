//! Wait strategies of a server of many streams: a process that echoes, and clients with one thread each (RR-Compound,
//! sections IV and V: TCP, BP, BPTS, EVENT, BPEV).

use super::echo::Echo;
use super::medium::not_opened;
use super::ping_pong::{MESSAGE_LEN_BYTES, message};
use crate::measure::{Cores, LatencyRecorder, keep_thread_on};
use crate::peer::{self, BothEnds, Meter, PairPlan, Peer, PeerError, PeerPlace, PeerTask};
use farcall::select::{SelectedNic, Selection};
use farcall::stream::{StreamListener, StreamOptions, StreamSocket};
use farcall_drive::Pollers;
use farcall_link::{Nic, WaitStrategy};
use farcall_stream::StreamSet;
use rustix::event::epoll;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Wait strategy of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitMode {
    /// Sockets with epoll.
    Tcp,
    /// A thread for each stream, which polls it.
    Bp,
    /// One thread polls all streams in turn.
    Bpts,
    /// One thread sleeps until a stream raises an event.
    Event,
    /// One thread polls for a while, then sleeps; pollers wake it.
    Bpev,
}

names! { WaitMode { Tcp => "TCP", Bp => "BP", Bpts => "BPTS", Event => "EVENT", Bpev => "BPEV" } }

/// The load, and the parameters of BPEV.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Load {
    /// Number of streams, each with one client thread.
    pub clients: usize,
    /// Pause of each client between a reply and its next message.
    pub interval: Duration,
    /// Number of poller threads; without any, the worker polls and then sleeps until an event.
    pub pollers: usize,
    /// Time that the worker polls; if `None`, it is measured.
    pub bp_timeout_us: Option<u32>,
}

/// Results of a measurement.
#[derive(Debug, Clone)]
pub struct Served {
    /// Time from a message to its reply.
    pub latencies: LatencyRecorder,
    /// Replies a second of all clients.
    pub per_second: f64,
    /// Cores used by the server and by the clients.
    pub cores: BothEnds,
    /// Cores used by both while all streams were open and no messages were sent.
    pub idle_cores: f64,
}

/// Task of the serving end.
#[derive(Debug, Serialize, Deserialize)]
pub struct EchoServer {
    mode: WaitMode,
    load: Load,
    selection: Selection,
    cores: Vec<usize>,
}

/// Stack of a client thread in bytes, which needs little more than its buffers.
const STACK_BYTES: usize = 256 << 10;
/// Time until pollers sleep and the last timers have expired.
const SETTLE: Duration = Duration::from_millis(200);

impl PeerTask for EchoServer {
    const KIND: &'static str = "stream-waits";

    fn run(self, mut place: PeerPlace) -> Result<(), PeerError> {
        // Pollers and workers use all cores; the process was started on one.
        keep_thread_on(&self.cores)?;
        let clients = self.load.clients;
        if self.mode == WaitMode::Tcp {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(PeerError::system("bind"))?;
            tell(&mut place, listener.local_addr())?;
            let accept = || Ok(listener.accept().map_err(PeerError::system("accept"))?.0);
            return echo_tcp((0..clients).map(|_| accept()).collect::<Result<_, PeerError>>()?);
        }
        let chosen = self.selection.open().map_err(not_opened)?;
        let nic = chosen.nic.clone();
        let mut options = self.mode.options();
        if self.mode == WaitMode::Bpev && self.load.pollers > 0 {
            let pollers = Pollers::start(self.load.pollers).map_err(PeerError::system("clone"))?;
            options = options.pollers(pollers);
        }
        let mut listener = StreamListener::bind(&nic, (Ipv4Addr::LOCALHOST, 0), options)
            .map_err(PeerError::system("bind"))?;
        tell(&mut place, listener.address())?;
        let mut sockets = Vec::new();
        for _ in 0..clients {
            sockets.push(listener.accept().map_err(PeerError::system("accept"))?);
        }
        match self.mode {
            WaitMode::Bp => echo_by_threads(sockets),
            WaitMode::Bpts => echo_in_turn(sockets, WaitStrategy::Busy),
            WaitMode::Bpev => {
                echo_in_turn(sockets, WaitStrategy::Bpev { bp_timeout_us: self.load.bp_timeout_us })
            }
            WaitMode::Event | WaitMode::Tcp => echo_in_turn(sockets, WaitStrategy::EventBatch),
        }
    }
}

fn tell(place: &mut PeerPlace, address: std::io::Result<SocketAddr>) -> Result<(), PeerError> {
    place.ready()?;
    peer::send(place.control(), &address.map_err(PeerError::system("getsockname"))?)
}

impl WaitMode {
    fn options(self) -> StreamOptions {
        match self {
            Self::Bp | Self::Bpts => StreamOptions::default().waiting(WaitStrategy::Busy),
            _ => StreamOptions::default().pollable(),
        }
    }
}

fn echo_tcp(sockets: Vec<TcpStream>) -> Result<(), PeerError> {
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(PeerError::system("epoll_create"))?;
    let mut echoes = Vec::new();
    for (at, socket) in sockets.into_iter().enumerate() {
        socket
            .set_nonblocking(true)
            .and_then(|()| socket.set_nodelay(true))
            .map_err(PeerError::system("fcntl"))?;
        let data = epoll::EventData::new_u64(at as u64);
        // A reply is shorter than any socket buffer, so there is space for it.
        epoll::add(&poller, socket.as_fd(), data, epoll::EventFlags::IN)
            .map_err(PeerError::system("epoll_ctl"))?;
        echoes.push(Some((socket, Echo::new())));
    }
    let mut events = Vec::with_capacity(128);
    let mut left = echoes.len();
    while left > 0 {
        events.clear();
        let buffer = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&poller, buffer, None).map_err(PeerError::system("epoll_wait"))?;
        for event in &events {
            let place = &mut echoes[event.data.u64() as usize];
            let Some((socket, echo)) = place else { continue };
            if echo.answer(socket)? {
                *place = None;
                left -= 1;
            }
        }
    }
    Ok(())
}

fn echo_by_threads(sockets: Vec<StreamSocket>) -> Result<(), PeerError> {
    thread::scope(|scope| {
        let threads: Vec<_> = sockets
            .into_iter()
            .map(|mut socket| scope.spawn(move || Echo::new().answer(&mut socket)))
            .collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(ended) => ended.map(drop),
            Err(_) => Err(PeerError::Ended),
        })
    })
}

fn echo_in_turn(sockets: Vec<StreamSocket>, waiting: WaitStrategy) -> Result<(), PeerError> {
    let mut set = StreamSet::new(waiting).map_err(PeerError::system("epoll_create"))?;
    let mut echoes: Vec<_> = sockets.iter().map(|_| Echo::new()).collect();
    for socket in sockets {
        set.insert(socket).map_err(PeerError::system("epoll_ctl"))?;
    }
    let mut ready = Vec::new();
    while !set.is_empty() {
        set.wait(&mut ready, None).map_err(PeerError::system("epoll_wait"))?;
        for at in ready.iter().copied() {
            let Some(socket) = set.socket(at) else { continue };
            if echoes[at].answer(socket)? {
                set.remove(at);
            }
        }
    }
    Ok(())
}

/// Barriers between the phases of all clients of a measurement.
struct Phases {
    begin: Barrier,
    ended: Barrier,
    close: Barrier,
    is_recorded: AtomicBool,
    is_over: AtomicBool,
}

/// Measures one strategy under a load.
///
/// # Errors
/// Returns an error if the other end cannot be started, if a stream fails, or if a byte is wrong.
pub fn serve(mode: WaitMode, load: Load, chosen: &SelectedNic, plan: &PairPlan) -> Result<Served, PeerError> {
    let cores = Cores::allowed()?.as_slice().to_vec();
    let server = EchoServer { mode, load, selection: chosen.selection.clone(), cores };
    let server = plan.launcher.start(&server, plan.server_core, &[])?;
    let address: SocketAddr = peer::receive(server.control())?;
    let nic = chosen.nic.clone();
    let mut sockets: Vec<Box<dyn ReadWrite>> = Vec::new();
    for _ in 0..load.clients {
        sockets.push(mode.connect(&nic, address)?);
    }
    let all = load.clients + 1;
    let phases = Phases {
        begin: Barrier::new(all),
        ended: Barrier::new(all),
        close: Barrier::new(all),
        is_recorded: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let mut clients = Vec::new();
        for (number, socket) in sockets.into_iter().enumerate() {
            let (phases, client) = (&phases, thread::Builder::new().stack_size(STACK_BYTES));
            let client = client.spawn_scoped(scope, move || call(socket, number, load, phases));
            clients.push(client.map_err(PeerError::system("clone"))?);
        }
        phases.begin.wait();
        thread::sleep(plan.warm_up);
        phases.is_recorded.store(true, Ordering::Relaxed);
        let (cores, elapsed) = cores_while(&server, plan.duration)?;
        phases.is_over.store(true, Ordering::Relaxed);
        phases.ended.wait();
        thread::sleep(SETTLE);
        let (idle_cores, _) = cores_while(&server, plan.duration)?;
        phases.close.wait();
        let mut latencies = LatencyRecorder::default();
        for client in clients {
            latencies.add(&client.join().map_err(|_| PeerError::Ended)??);
        }
        let per_second = latencies.count() as f64 / elapsed.as_secs_f64();
        Ok(Served { latencies, per_second, cores, idle_cores: idle_cores.client + idle_cores.server })
    })
}

/// Returns the cores that the server and this process use during a period, and the length of that period.
fn cores_while(server: &Peer, duration: Duration) -> Result<(BothEnds, Duration), PeerError> {
    let (meter, start) = (Meter::start(server)?, Instant::now());
    thread::sleep(duration);
    let elapsed = start.elapsed();
    Ok((meter.stop()?, elapsed))
}

trait ReadWrite: Read + Write + Send {}
impl<T: Read + Write + Send> ReadWrite for T {}

impl WaitMode {
    /// Connects a client with the wait strategy that suits one thread with one stream. Over TCP its calls block; under
    /// EVENT it sleeps until events; otherwise it polls for about a round trip, then sleeps.
    fn connect(self, nic: &Nic, address: SocketAddr) -> Result<Box<dyn ReadWrite>, PeerError> {
        if self == Self::Tcp {
            let socket = TcpStream::connect(address).map_err(PeerError::system("connect"))?;
            socket.set_nodelay(true).map_err(PeerError::system("setsockopt"))?;
            return Ok(Box::new(socket));
        }
        let waiting = match self {
            Self::Event => WaitStrategy::EventBatch,
            _ => WaitStrategy::Bpev { bp_timeout_us: None },
        };
        let options = StreamOptions::default().waiting(waiting);
        Ok(Box::new(StreamSocket::connect(nic, address, options).map_err(not_opened)?))
    }
}

/// Runs one client: a message, its reply, a pause.
fn call(
    mut socket: Box<dyn ReadWrite>,
    number: usize,
    load: Load,
    phases: &Phases,
) -> Result<LatencyRecorder, PeerError> {
    phases.begin.wait();
    // The clients do not start at the same time.
    thread::sleep(load.interval.mul_f64(number as f64 / load.clients as f64));
    let mut latencies = LatencyRecorder::default();
    let mut reply = [0; MESSAGE_LEN_BYTES];
    let mut ended = Ok(());
    for round in 0_u64.. {
        let (is_recorded, start) = (phases.is_recorded.load(Ordering::Relaxed), Instant::now());
        let sent = socket.write_all(&message(round)).and_then(|()| socket.read_exact(&mut reply));
        if let Err(error) = sent {
            ended = Err(PeerError::system("read")(error));
        } else if reply != message(round) {
            ended = Err(PeerError::WrongEcho(round));
        }
        if ended.is_err() || phases.is_over.load(Ordering::Relaxed) {
            break;
        }
        if is_recorded {
            latencies.record_ns(start.elapsed().as_nanos() as u64);
        }
        if !load.interval.is_zero() {
            thread::sleep(load.interval);
        }
    }
    // The other clients wait for this one at the barriers, even after an error.
    phases.ended.wait();
    phases.close.wait();
    ended.map(|()| latencies)
}
