//! An end in another process: every call is sent over a stream to its agent.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use super::Executor;
use super::agent::{read_frame, write_frame};
use super::call::{Answer, Call, Refusal, VERSION};

/// Timeout of one call to an agent.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

struct Line {
    stream: UnixStream,
    /// The agent, if it is a child of this process.
    child: Option<Child>,
}

/// An end that an agent process serves. Clones use the same agent.
#[derive(Clone)]
pub struct Remote {
    line: Rc<RefCell<Line>>,
}

impl Remote {
    /// Starts an agent: a command that calls [`super::serve`] on the socket that is its standard input.
    ///
    /// # Errors
    /// Returns an error if the agent cannot be started, does not reply, or has another version.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let (stream, theirs) = UnixStream::pair()?;
        let child = command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).spawn()?;
        // The command holds the agent's end of the stream, so the agent's exit would otherwise not be detected.
        drop(command);
        Self::over(stream, Some(child))
    }

    /// Connects to an agent that was started elsewhere with a TCP connection as its standard input.
    ///
    /// # Errors
    /// Those of [`Remote::start`].
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, CALL_TIMEOUT)?;
        stream.set_nodelay(true)?;
        // The stream is only read and written, which any stream socket supports.
        Self::over(UnixStream::from(OwnedFd::from(stream)), None)
    }

    fn over(mut stream: UnixStream, child: Option<Child>) -> io::Result<Self> {
        stream.set_read_timeout(Some(CALL_TIMEOUT))?;
        let version: u32 = read_frame(&mut stream)
            .map_err(|error| io::Error::new(error.kind(), format!("the agent says nothing: {error}")))?;
        if version != VERSION {
            let text =
                format!("the agent speaks version {version}, we {VERSION}: use one build for both ends");
            return Err(io::Error::other(text));
        }
        Ok(Self { line: Rc::new(RefCell::new(Line { stream, child })) })
    }
}

impl Executor for Remote {
    fn call(&mut self, call: &Call) -> Result<Answer, Refusal> {
        let stream = &mut self.line.borrow_mut().stream;
        let talk = write_frame(stream, call).and_then(|()| read_frame(stream));
        talk.unwrap_or_else(|error| {
            Err(Refusal::harness(call.name(), format!("the agent did not answer: {error}")))
        })
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // The agent exits when its stream is closed.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let Some(child) = &mut self.child else { return };
        if !matches!(child.try_wait(), Ok(Some(_))) {
            let _ = child.kill();
        }
        let _ = child.wait();
    }
}
