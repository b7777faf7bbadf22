//! Services whose methods have types: what the attribute `farcall::service` generates stands on this.
//!
//! A method's arguments and its `Result` travel as postcard, behind a fingerprint of 32 bits: of the service's name and
//! version, and of the method's name and types as they are written. The server compares it with each call, so that
//! nothing is decoded as something else. A client that connects asks for the whole description, and says in words which
//! method differs. What a type of the program's own looks like inside is not seen: change the version with it.
//!
//! A stream of results comes page by page: each page is a call that the client makes when it wants more, so neither side
//! holds more than a page, and an iterator at the server is not asked for more than was taken.

mod client;
mod codec;
mod description;
mod pages;
mod server;
#[cfg(feature = "tokio")]
mod tasks;

pub use client::{Failed, Pages, ServiceError, TypedClient};
pub use description::{Description, Method};
pub use farcall_verbs::Provider;
pub use server::{Incoming, Service, Typed};
#[cfg(feature = "tokio")]
pub use tasks::{AsyncPages, TypedAsyncClient};

pub use crate::client::{ClientOptions, PerCall};
pub use crate::responder::HandlerError;

/// Methods of the library's own: the description, the next page of a stream, its early end.
const DESCRIBE: u16 = 0xffff;
const NEXT_PAGE: u16 = 0xfffe;
const CLOSE_STREAM: u16 = 0xfffd;

/// What is for tasks exists if there are any.
#[cfg(feature = "tokio")]
#[doc(hidden)]
#[macro_export]
macro_rules! __for_tasks {
    ($($item:item)*) => { $($item)* };
}

/// What is for tasks exists if there are any.
#[cfg(not(feature = "tokio"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __for_tasks {
    ($($item:item)*) => {};
}

#[doc(hidden)]
pub use crate::__for_tasks as for_tasks;
