//! The attribute `service` of farcall, which generates a server, a blocking client and an asynchronous client from a
//! trait. The generated code calls `farcall::rpc::service`; use the attribute through the package `farcall`, which
//! documents it.

#![forbid(unsafe_code)]

mod expand;
mod method;
mod service;

use proc_macro::TokenStream;

/// See `farcall::service`.
#[proc_macro_attribute]
pub fn service(options: TokenStream, item: TokenStream) -> TokenStream {
    expand::service(options.into(), item.into()).unwrap_or_else(|error| error.to_compile_error()).into()
}
