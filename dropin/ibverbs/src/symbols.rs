//! Symbol versions: the version node of the original library under which a function is exported.

/// [`farcall_trace::export`] with this library's trace.
macro_rules! export {
    ($($functions:tt)*) => { farcall_trace::export! { crate::traced::begin; $($functions)* } };
}

/// [`farcall_trace::unsupported`] with this library's trace.
macro_rules! unsupported {
    ($($functions:tt)*) => { farcall_trace::unsupported! { crate::traced::begin; $($functions)* } };
}

pub(crate) use {export, unsupported};
