//! The attribute `service` of farcall: out of a trait it makes a server, a blocking client and one for tasks. What it
//! generates calls `farcall::rpc::service`; use it through the crate `farcall`, where it is described.

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
