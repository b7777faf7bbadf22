//! The asynchronous client of a typed service.

use farcall_link::Nic;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::convert::Infallible;
use std::marker::PhantomData;

use super::client::{Failed, Page, ServiceError};
use super::codec::{decode, request};
use super::description::Description;
use super::{CLOSE_STREAM, DESCRIBE, NEXT_PAGE};
use crate::client::{AsyncClient, CallOptions, ClientOptions};

/// An [`AsyncClient`] that calls the methods of a service. The attribute generates a type with methods that contains
/// it.
#[derive(Clone)]
pub struct TypedAsyncClient {
    client: AsyncClient,
    options: CallOptions,
}

farcall_verbs::opaque_debug!(TypedAsyncClient);

impl TypedAsyncClient {
    /// Connects, and requests the server's description.
    ///
    /// # Errors
    /// Returns the errors of [`AsyncClient::connect`], or the differences if the server provides a different service.
    pub async fn connect(
        nic: &Nic,
        address: impl Into<String>,
        options: ClientOptions,
        description: &Description,
    ) -> Result<Self, ServiceError> {
        let client = AsyncClient::connect(nic, address, options).await?;
        let described = client.call(DESCRIBE, &[]).await.map_err(ServiceError::of_describing)?;
        description.check(&described).map_err(ServiceError::OtherService)?;
        Ok(Self { client, options: CallOptions::default() })
    }

    /// Returns this client with other options for its calls.
    #[must_use]
    pub fn with_options(&self, options: CallOptions) -> Self {
        Self { client: self.client.clone(), options }
    }

    /// Calls a method.
    ///
    /// # Errors
    /// See [`Failed`].
    pub async fn call<A, T, E>(&self, method: u16, fingerprint: u32, arguments: &A) -> Result<T, Failed<E>>
    where
        A: Serialize,
        T: DeserializeOwned,
        E: DeserializeOwned,
    {
        let mut bytes = Vec::new();
        request(fingerprint, arguments, &mut bytes).map_err(Failed::Arguments)?;
        let reply = self.client.call_with(method, &bytes, self.options).await?;
        decode::<Result<T, E>>(&reply).map_err(Failed::Undecodable)?.map_err(Failed::Service)
    }

    /// Calls a method whose results are a stream.
    ///
    /// # Errors
    /// See [`Failed`].
    pub async fn stream<A, T, E>(
        &self,
        method: u16,
        fingerprint: u32,
        arguments: &A,
    ) -> Result<AsyncPages<T>, Failed<E>>
    where
        A: Serialize,
        E: DeserializeOwned,
    {
        let mut bytes = Vec::new();
        request(fingerprint, arguments, &mut bytes).map_err(Failed::Arguments)?;
        let reply = self.client.call_with(method, &bytes, self.options).await?;
        let mut page = Page::default();
        page.begin::<E>(&reply)?;
        Ok(AsyncPages { client: self.clone(), page, of: PhantomData })
    }
}

/// A stream of results for a task, like [`super::Pages`].
pub struct AsyncPages<T> {
    client: TypedAsyncClient,
    page: Page,
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> AsyncPages<T> {
    /// Returns the next item; `None` at the end. If the future is dropped while it waits for a page, the stream ends
    /// with an error.
    ///
    /// # Errors
    /// Returns an error if a page cannot be fetched, which ends the stream.
    pub async fn next(&mut self) -> Option<Result<T, Failed<Infallible>>> {
        loop {
            if let Some(item) = self.page.take() {
                return Some(item.map_err(Failed::Undecodable));
            }
            if self.page.stream == 0 {
                return None;
            }
            let stream = std::mem::take(&mut self.page.stream);
            let TypedAsyncClient { client, options } = &self.client;
            match client.call_with(NEXT_PAGE, &stream.to_le_bytes(), *options).await {
                Ok(page) => {
                    if let Err(why) = self.page.turn(&page) {
                        return Some(Err(Failed::Undecodable(why)));
                    }
                }
                Err(error) => return Some(Err(error.into())),
            }
        }
    }
}

impl<T> Drop for AsyncPages<T> {
    fn drop(&mut self) {
        if self.page.stream == 0 {
            return;
        }
        let (client, stream) = (self.client.client.clone(), self.page.stream);
        // Without a runtime the connection has ended, and the server discards the stream with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { client.call(CLOSE_STREAM, &stream.to_le_bytes()).await });
        }
    }
}
