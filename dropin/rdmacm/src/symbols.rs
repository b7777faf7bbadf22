//! Symbol versions: the version node of the original library under which a function is exported.

/// [`farcall_trace::export`] with this library's trace.
macro_rules! export {
    ($($functions:tt)*) => { farcall_trace::export! { crate::traced::begin; $($functions)* } };
}

/// [`farcall_trace::not_offered`] with this library's trace.
macro_rules! not_offered {
    ($($functions:tt)*) => { farcall_trace::not_offered! { crate::traced::begin; $($functions)* } };
}

pub(crate) use {export, not_offered};
