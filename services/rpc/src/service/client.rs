//! The blocking client of a typed service.

use farcall_link::Nic;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use thiserror::Error;

use super::codec::{decode, request, take};
use super::description::Description;
use super::pages::read_head;
use super::{CLOSE_STREAM, DESCRIBE, NEXT_PAGE};
use crate::client::{CallOptions, Client, ClientOptions};
use crate::error::{CallError, ConnectError, Executed};
use crate::wire::Status;

/// Why a call of a method returned no value.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum Failed<E> {
    /// The method returned an error.
    #[error("the method failed: {0:?}")]
    Service(E),
    /// The call failed; [`CallError::executed`] indicates whether the method ran.
    #[error(transparent)]
    Call(#[from] CallError),
    /// An argument cannot be encoded. No request was sent.
    #[error("an argument cannot be encoded: {0}")]
    Arguments(String),
    /// The method ran, but its result cannot be decoded.
    #[error("what the server sent cannot be decoded: {0}")]
    Undecodable(String),
}

impl<E> Failed<E> {
    /// Returns whether the method ran.
    pub const fn executed(&self) -> Executed {
        match self {
            Self::Service(_) | Self::Undecodable(_) => Executed::Yes,
            Self::Call(error) => error.executed(),
            Self::Arguments(_) => Executed::No,
        }
    }
}

/// Why a client of a service could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The connection could not be established.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The request for the server's description failed.
    #[error("the server does not describe its service")]
    Call(#[from] CallError),
    /// The server provides a different service.
    #[error("{0}; use a client and a server of one version of the service")]
    OtherService(String),
}

impl ServiceError {
    /// Converts the error of the request for a description. A server without a description serves untyped calls.
    pub(super) fn of_describing(error: CallError) -> Self {
        match error {
            CallError::Server { status: Status::UNKNOWN_METHOD, .. } | CallError::Application { .. } => {
                Self::OtherService("the server serves nothing with a description".into())
            }
            other => Self::Call(other),
        }
    }
}

/// A [`Client`] that calls the methods of a service. The attribute generates a type with methods that contains it.
pub struct TypedClient {
    client: Client,
    request: Vec<u8>,
    reply: Vec<u8>,
    options: CallOptions,
}

farcall_verbs::opaque_debug!(TypedClient);

impl Deref for TypedClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for TypedClient {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl TypedClient {
    /// Connects, and requests the server's description.
    ///
    /// # Errors
    /// Returns the errors of [`Client::connect`], or the differences if the server provides a different service.
    pub fn connect(
        nic: &Nic,
        address: impl Into<String>,
        options: ClientOptions,
        description: &Description,
    ) -> Result<Self, ServiceError> {
        let mut client = Client::connect(nic, address, options)?;
        let mut reply = Vec::new();
        client.call(DESCRIBE, &[], &mut reply).map_err(ServiceError::of_describing)?;
        description.check(&reply).map_err(ServiceError::OtherService)?;
        Ok(Self { client, request: Vec::new(), reply, options: CallOptions::default() })
    }

    /// Sets the options of all further calls.
    pub fn set_options(&mut self, options: CallOptions) {
        self.options = options;
    }

    /// Calls a method.
    ///
    /// # Errors
    /// See [`Failed`].
    #[inline]
    pub fn call<A, T, E>(&mut self, method: u16, fingerprint: u32, arguments: &A) -> Result<T, Failed<E>>
    where
        A: Serialize,
        T: DeserializeOwned,
        E: DeserializeOwned,
    {
        request(fingerprint, arguments, &mut self.request).map_err(Failed::Arguments)?;
        self.exchange(method)?;
        decode::<Result<T, E>>(&self.reply).map_err(Failed::Undecodable)?.map_err(Failed::Service)
    }

    /// Sends the request and receives its result into `reply`.
    #[inline]
    fn exchange(&mut self, method: u16) -> Result<(), CallError> {
        self.reply.clear();
        self.client.call_with(method, &self.request, &mut self.reply, self.options)
    }

    /// Calls a method whose results are a stream.
    ///
    /// # Errors
    /// See [`Failed`].
    pub fn stream<A, T, E>(
        &mut self,
        method: u16,
        fingerprint: u32,
        arguments: &A,
    ) -> Result<Pages<'_, T>, Failed<E>>
    where
        A: Serialize,
        E: DeserializeOwned,
    {
        request(fingerprint, arguments, &mut self.request).map_err(Failed::Arguments)?;
        self.exchange(method)?;
        let mut page = Page::default();
        page.begin::<E>(&self.reply)?;
        Ok(Pages { client: self, page, of: PhantomData })
    }
}

/// A received page, and the position of the next item.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// Id of the stream; 0: there are no more pages.
    pub stream: u32,
    items: Vec<u8>,
    taken_bytes: usize,
    left: u32,
}

impl Page {
    /// Decodes the first page, which follows the result of beginning the stream.
    pub fn begin<E: DeserializeOwned>(&mut self, reply: &[u8]) -> Result<(), Failed<E>> {
        let mut rest = reply;
        take::<Result<(), E>>(&mut rest).map_err(Failed::Undecodable)?.map_err(Failed::Service)?;
        self.turn(rest).map_err(Failed::Undecodable)
    }

    /// Decodes the next page.
    pub fn turn(&mut self, page: &[u8]) -> Result<(), String> {
        let (stream, count, items) = read_head(page)?;
        self.items.clear();
        self.items.extend_from_slice(items);
        (self.stream, self.taken_bytes, self.left) = (stream, 0, count);
        Ok(())
    }

    /// Returns the next item of this page.
    pub fn take<T: DeserializeOwned>(&mut self) -> Option<Result<T, String>> {
        self.left = self.left.checked_sub(1)?;
        let mut rest = &self.items[self.taken_bytes..];
        let item = take(&mut rest);
        self.taken_bytes = self.items.len() - rest.len();
        if item.is_err() {
            (self.left, self.stream) = (0, 0);
        }
        Some(item)
    }
}

/// A stream of results. Fetches the next page after the last item of a page. Dropping it early notifies the server. A
/// lost connection ends it with an error.
pub struct Pages<'a, T> {
    client: &'a mut TypedClient,
    page: Page,
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Iterator for Pages<'_, T> {
    type Item = Result<T, Failed<Infallible>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.page.take() {
                return Some(item.map_err(Failed::Undecodable));
            }
            if self.page.stream == 0 {
                return None;
            }
            // An error ends the stream.
            let stream = std::mem::take(&mut self.page.stream);
            self.client.request.clear();
            self.client.request.extend_from_slice(&stream.to_le_bytes());
            if let Err(error) = self.client.exchange(NEXT_PAGE) {
                return Some(Err(error.into()));
            }
            if let Err(why) = self.page.turn(&self.client.reply) {
                return Some(Err(Failed::Undecodable(why)));
            }
        }
    }
}

impl<T> Drop for Pages<'_, T> {
    fn drop(&mut self) {
        if self.page.stream == 0 {
            return;
        }
        let client = &mut self.client.client;
        // The outcome is not needed: a server that does not receive this discards the stream with the connection.
        if let Ok(call) = client.submit(CLOSE_STREAM, &self.page.stream.to_le_bytes()) {
            client.flush();
            client.cancel(call);
        }
    }
}
