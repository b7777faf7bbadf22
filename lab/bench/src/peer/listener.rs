//! The server half: starts peers and servers for a client half on another host, one run at a time.
//!
//! Each connection has a thread. A process exists as long as the connection that requested it, and a run as long as
//! any of its connections. Both end when the client half exits or cannot be reached any more.

use super::control::{Control, receive_up_to, send};
use super::remote_agent::{
    AgentRequest, Begun, GREETING_PATIENCE, GreetingCheck, StopServer, check_greeting, greeting,
    read_greeting,
};
use super::{ChildProcess, Order, PeerError, PeerLauncher};
use crate::experiments::server::ServerProcess;
use crate::experiments::service::Service;
use crate::measure::{Cores, cpu_time};
use crate::report::Conditions;
use crate::tasks::is_done_for_others;
use farcall::select::Selection;
use farcall_drive::{AcceptBackoff, sleep_on};
use farcall_verbs::with_sources;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of concurrent connections; each may have a process.
const CONNECTIONS_MAX: usize = 64;
/// Maximum length of a request in bytes, which becomes an environment variable.
pub(super) const REQUEST_LEN_BYTES_MAX: u32 = 64 << 10;
/// Interval at which the end of the server half is checked.
const WATCH: Duration = Duration::from_millis(50);
/// Time that a new run waits for the end of the previous one, whose client half may just have exited.
const RUN_PATIENCE: Duration = Duration::from_secs(3);
/// Timeout for a server to end after SIGTERM.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// A listening server half.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    half: Arc<Half>,
}

#[derive(Debug)]
struct Half {
    nic: Selection,
    cores: Cores,
    run: Mutex<Weak<Run>>,
}

/// A run of a client half.
#[derive(Debug)]
struct Run {
    token: u64,
    client: SocketAddr,
    processes: Mutex<Processes>,
}

#[derive(Debug, Default)]
struct Processes {
    started: u32,
    /// Process ids of the running processes, by number.
    pids: HashMap<u32, u32>,
}

impl Listener {
    /// Listens on `address`. Peers use `nic`, or the RNIC that the client half uses if `nic` specifies none.
    ///
    /// # Errors
    /// Returns an error if the address is not available.
    pub fn bind(address: SocketAddr, nic: Selection) -> Result<Self, PeerError> {
        let cannot_listen = |source| PeerError::Listen { address, source };
        let socket = TcpListener::bind(address).map_err(cannot_listen)?;
        socket.set_nonblocking(true).map_err(cannot_listen)?;
        let address = socket.local_addr().map_err(cannot_listen)?;
        let half = Half { nic, cores: Cores::allowed()?, run: Mutex::default() };
        Ok(Self { socket, address, half: Arc::new(half) })
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves client halves while `goes_on` returns true. `tell` is called with descriptions of their actions and of
    /// failures.
    ///
    /// # Errors
    /// Returns an error if the system cannot wait for connections.
    pub fn serve(&self, goes_on: impl Fn() -> bool, tell: fn(&str)) -> Result<(), PeerError> {
        let failed = |call| move |source: io::Error| PeerError::System { call, source };
        let attended = Arc::new(());
        let mut backoff = AcceptBackoff::new(format!("server half at {}", self.address));
        while goes_on() {
            match backoff.remaining() {
                Some(left) => thread::sleep(left.min(WATCH)),
                None => sleep_on(&[self.socket.as_raw_fd()], Some(WATCH)).map_err(failed("poll"))?,
            }
            if backoff.remaining().is_some() && !backoff.take_expired() {
                continue;
            }
            let (stream, client) = match self.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    backoff.should_retry(&error);
                    continue;
                }
            };
            if Arc::strong_count(&attended) > CONNECTIONS_MAX {
                tell(&format!("{client}: refused: {CONNECTIONS_MAX} connections are open"));
                continue;
            }
            let (half, attended) = (Arc::clone(&self.half), Arc::clone(&attended));
            let attend = move || {
                if let Err(error) = half.attend(stream, client, tell) {
                    tell(&format!("{client}: {}", with_sources(&error)));
                }
                drop(attended);
            };
            if let Err(error) = thread::Builder::new().name("half".to_owned()).spawn(attend) {
                tell(&format!("{client}: refused: no thread for it: {error}"));
            }
        }
        Ok(())
    }
}

impl Half {
    /// Exchanges greetings and executes the request, until the connection ends.
    fn attend(&self, stream: TcpStream, client: SocketAddr, tell: fn(&str)) -> Result<(), PeerError> {
        let system = |source: io::Error| PeerError::System { call: "setsockopt", source };
        stream.set_nonblocking(false).map_err(system)?;
        let control = Control::of_tcp(stream).map_err(system)?;
        control.set_patience(Some(GREETING_PATIENCE)).map_err(system)?;
        greet(&control)?;
        let request = match receive_up_to(&control, REQUEST_LEN_BYTES_MAX) {
            Ok(request) => request,
            Err(error) => return refuse(&control, with_sources(&error)),
        };
        // The timeout is removed because it would apply to a process that inherits the stream as well.
        control.set_patience(None).map_err(system)?;
        match request {
            AgentRequest::Run => match self.begin(client) {
                Ok(run) => {
                    tell(&format!("{client}: a run begins"));
                    answer(&control, &Begun { run: run.token, about: self.about() })?;
                    wait_for_end(&control, None)?;
                    tell(&format!("{client}: the run ends"));
                    Ok(())
                }
                Err(why) => refuse(&control, why),
            },
            AgentRequest::Peer { run, order } => match self.run(run) {
                Ok(_) if !is_done_for_others(&order.kind) => {
                    refuse(&control, format!("no task {:?} is done for another host", order.kind))
                }
                Ok(run) => self.peer(&run, order, &control),
                Err(why) => refuse(&control, why),
            },
            AgentRequest::Serve { run, service } => match self.run(run) {
                Ok(run) => self.server(&run, &service, &control),
                Err(why) => refuse(&control, why),
            },
            AgentRequest::CpuTime { run, process } => {
                match self.run(run).and_then(|run| run.cpu_time(process)) {
                    Ok(time) => answer(&control, &time),
                    Err(why) => refuse(&control, why),
                }
            }
        }
    }

    /// Begins a new run, as soon as there is no other.
    fn begin(&self, client: SocketAddr) -> Result<Arc<Run>, String> {
        let deadline = Instant::now() + RUN_PATIENCE;
        loop {
            {
                let mut current = locked(&self.run);
                let Some(run) = current.upgrade() else {
                    let token = RandomState::new().hash_one(client);
                    let run = Arc::new(Run { token, client, processes: Mutex::default() });
                    *current = Arc::downgrade(&run);
                    return Ok(run);
                };
                if Instant::now() > deadline {
                    return Err(format!(
                        "it is busy with a run of {}; it does one at a time, try again later",
                        run.client
                    ));
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the current run if `token` identifies it.
    fn run(&self, token: u64) -> Result<Arc<Run>, String> {
        let run = locked(&self.run).upgrade().filter(|run| run.token == token);
        run.ok_or_else(|| "this run has ended, or was never begun".to_owned())
    }

    /// Returns the conditions of this host that a client half reports.
    fn about(&self) -> Vec<(String, String)> {
        let conditions = Conditions::of_this_machine();
        let here = conditions.iter().filter(|(name, _)| ["host", "kernel", "cpu"].contains(name));
        let mut about: Vec<_> = here.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        about.push(("core".to_owned(), self.cores.server_and_client().0.to_string()));
        about
    }

    /// Starts a peer on the stream, and waits until the peer exits or the stream is closed.
    fn peer(&self, run: &Run, order: Order, control: &Control) -> Result<(), PeerError> {
        let order = Order { own_nic: Some(self.nic.clone()), ..order };
        let (number, child) = {
            let mut processes = locked(&run.processes);
            let number = processes.next();
            // Must precede the first message of the peer.
            answer(control, &number)?;
            let core = self.cores.of_peer(processes.pids.len());
            let child = PeerLauncher::this_program().spawn(order, core, &[control.as_fd()])?;
            processes.pids.insert(number, child.0.id());
            (number, child)
        };
        let ended = wait_for_end(control, Some(&child));
        locked(&run.processes).pids.remove(&number);
        ended
    }

    /// Starts a server, and waits for the request to end it, for its exit or for the end of the stream.
    fn server(&self, run: &Run, service: &Service, control: &Control) -> Result<(), PeerError> {
        if let Err(why) = service.check() {
            return refuse(control, why);
        }
        let service = Service { nic: nic_of(&self.nic, &service.nic), ..service.clone() };
        let launcher = PeerLauncher::with_args(service.args(control.local_ip()));
        let server = match ServerProcess::start(&launcher, &self.cores.of_server(service.threads())) {
            Ok(server) => server,
            Err(error) => return refuse(control, with_sources(&error)),
        };
        let number = {
            let mut processes = locked(&run.processes);
            let number = processes.next();
            processes.pids.extend(server.pid().map(|pid| (number, pid)));
            number
        };
        answer(control, &(number, server.ready()))?;
        // A client half that vanishes sends no request: the server is killed.
        let asked = receive_up_to::<StopServer>(control, REQUEST_LEN_BYTES_MAX);
        locked(&run.processes).pids.remove(&number);
        if asked.is_ok() {
            send(control, &server.stop(STOP_PATIENCE).map_err(|error| with_sources(&error)))?;
        }
        Ok(())
    }
}

impl Run {
    fn cpu_time(&self, process: u32) -> Result<Duration, String> {
        let processes = locked(&self.processes);
        let pid = processes.pids.get(&process).ok_or("there is no such process any more")?;
        cpu_time(*pid).map_err(|error| with_sources(&error))
    }
}

impl Processes {
    fn next(&mut self) -> u32 {
        self.started += 1;
        self.started
    }
}

/// Returns the RNIC of this host: the specified one, or else one of the kind that the client half uses.
pub(super) fn nic_of(own: &Selection, theirs: &Selection) -> Selection {
    if *own == Selection::default() {
        Selection { provider: theirs.provider, ..Selection::default() }
    } else {
        own.clone()
    }
}

/// Exchanges greetings.
fn greet(mut control: &Control) -> Result<(), PeerError> {
    let unheard = |error: io::Error| PeerError::Exchange(format!("no greeting came: {error}"));
    control.write_all(greeting().as_bytes()).map_err(unheard)?;
    let what = match check_greeting(&read_greeting(control).map_err(unheard)?) {
        GreetingCheck::Alike => return Ok(()),
        GreetingCheck::OtherVersion => "a client half of another version",
        GreetingCheck::UnexpectedPeer => "no client half",
    };
    let _ = control.write_all(format!("refused: you are {what} of farcall bench or figures\n").as_bytes());
    Err(PeerError::Exchange(format!("refused: the other side is {what}")))
}

fn answer<T: Serialize>(control: &Control, answer: &T) -> Result<(), PeerError> {
    send(control, &Ok::<_, &str>(answer))
}

/// Sends the reason of a refusal and returns it as an error.
fn refuse(control: &Control, why: String) -> Result<(), PeerError> {
    let _ = send(control, &Err::<(), _>(&why));
    Err(PeerError::Exchange(format!("refused: {why}")))
}

/// Sleeps until the other side closes the stream, or until the child has exited.
fn wait_for_end(control: &Control, child: Option<&ChildProcess>) -> Result<(), PeerError> {
    let child = child.map(|child| pidfd_open(Pid::from_child(&child.0), PidfdFlags::empty())).transpose();
    let child = child.map_err(PeerError::system("pidfd_open"))?;
    let mut fds = vec![PollFd::new(control, PollFlags::RDHUP)];
    fds.extend(child.as_ref().map(|child| PollFd::new(child, PollFlags::IN)));
    loop {
        match poll(&mut fds, None::<&Timespec>) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(PeerError::system("poll")(errno)),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
