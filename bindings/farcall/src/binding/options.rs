//! Opening of clients, servers, listeners and streams.

use std::time::Duration;

use farcall_kv::client::KvClient;
use farcall_link::Nic;
use farcall_rpc::{Client, ClientOptions, ConnectError, Handler, Server};
use farcall_stream::{StreamListener, StreamOptions, StreamSocket};

#[cfg(feature = "tokio")]
use super::Code;
use super::Failure;
use crate::select::Selection;

/// Options of clients, servers, listeners and streams. The default leaves all choices to the library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The provider, the device and its GID.
    pub selection: Selection,
    /// The preset of a client of remote calls or of a store; by default the client chooses one.
    pub preset: Option<String>,
    /// The thread of the server to which a client of remote calls connects.
    pub thread: u16,
    /// Number of threads of a server of remote calls; 0 means one.
    pub threads: u16,
    /// Timeout of connecting; by default 5 s.
    pub connect_timeout: Option<Duration>,
    /// Timeout of a call; by default there is none.
    pub call_timeout: Option<Duration>,
    /// Whether functions of a stream or a listener return instead of waiting. The object then has a descriptor to wait
    /// on.
    pub nonblocking: bool,
}

impl Options {
    /// Returns the options of a client of remote calls.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn client(&self) -> Result<ClientOptions, Failure> {
        let mut options = match &self.preset {
            Some(name) => {
                let unknown = || Failure::invalid(format!("{name:?} is no preset: README names them"));
                ClientOptions::preset(name).ok_or_else(unknown)?
            }
            None => ClientOptions::default(),
        };
        if let Some(timeout) = self.connect_timeout {
            options = options.connect_timeout(timeout);
        }
        Ok(options.thread(self.thread).call_timeout(self.call_timeout))
    }

    fn stream(&self) -> StreamOptions {
        let mut options = StreamOptions::default();
        if let Some(timeout) = self.connect_timeout {
            options = options.connect_timeout(timeout);
        }
        if self.nonblocking { options.pollable() } else { options }
    }

    /// Returns the provider of a server or a stream.
    ///
    /// # Errors
    /// If the selected provider cannot be used on this host.
    pub fn nic(&self) -> Result<Nic, Failure> {
        Ok(self.selection.open()?.nic)
    }

    /// Connects a client of remote calls.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub fn connect_client(&self, address: &str) -> Result<Client, Failure> {
        let options = self.client()?;
        let connect = |nic: &Nic| Client::connect(nic, address, options.clone());
        Ok(self.selection.connect(connect, ConnectError::is_other_provider)?)
    }

    /// Connects a client of remote calls for tasks, on the current tokio runtime.
    ///
    /// # Errors
    /// Those of [`farcall_rpc::AsyncClient::connect`].
    #[cfg(feature = "tokio")]
    pub async fn connect_async_client(self, address: String) -> Result<farcall_rpc::AsyncClient, Failure> {
        let options = self.client()?;
        let runtime = tokio::runtime::Handle::current();
        // The selection tries the providers one after the other, and blocks its thread.
        let connecting = tokio::task::spawn_blocking(move || {
            let connect = |nic: &Nic| {
                runtime.block_on(farcall_rpc::AsyncClient::connect(nic, &*address, options.clone()))
            };
            self.selection.connect(connect, ConnectError::is_other_provider)
        });
        let ended = |_| Failure::new(Code::System, "the runtime shuts down");
        Ok(connecting.await.map_err(ended)??)
    }

    /// Connects a client of a key-value store.
    ///
    /// # Errors
    /// Those of [`KvClient::connect`].
    pub fn connect_kv(&self, address: &str) -> Result<KvClient, Failure> {
        let options = self.client()?;
        let connect = |nic: &Nic| KvClient::connect(nic, address, &options);
        Ok(self.selection.connect(connect, farcall_kv::client::KvConnectError::is_other_provider)?)
    }

    /// Starts a server of remote calls. `service` creates the service of each thread.
    ///
    /// # Errors
    /// Those of [`farcall_rpc::ServerBuilder::start`].
    pub fn serve<H, F>(&self, address: &str, service: F) -> Result<Server, Failure>
    where
        H: Handler + 'static,
        F: Fn() -> H + Send + Sync + 'static,
    {
        let server = Server::builder().address(address).threads(self.threads);
        Ok(server.start(&self.nic()?, move |_thread| service())?)
    }

    /// Listens for streams.
    ///
    /// # Errors
    /// Those of [`StreamListener::bind`].
    pub fn listen(&self, address: &str) -> Result<StreamListener, Failure> {
        let nic = self.nic()?;
        let mut listener = StreamListener::bind(&nic, address, self.stream())?;
        listener.set_nonblocking(self.nonblocking);
        Ok(listener)
    }

    /// Accepts a stream, and applies the options to it.
    ///
    /// # Errors
    /// Those of [`StreamListener::accept`].
    pub fn accept(&self, listener: &mut StreamListener) -> Result<StreamSocket, Failure> {
        self.finished(listener.accept()?)
    }

    /// Connects a stream. This function waits even if [`Options::nonblocking`] is set.
    ///
    /// # Errors
    /// Those of [`StreamSocket::connect`].
    pub fn connect_stream(&self, address: &str) -> Result<StreamSocket, Failure> {
        let nic = self.nic()?;
        self.finished(StreamSocket::connect(&nic, address, self.stream())?)
    }

    fn finished(&self, mut stream: StreamSocket) -> Result<StreamSocket, Failure> {
        if self.nonblocking {
            stream.set_nonblocking(true)?;
        }
        Ok(stream)
    }
}
