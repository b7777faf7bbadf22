//! Symbol versions: the version node of the original library under which a function is exported.

/// [`farcall_trace::export`] with this library's trace.
macro_rules! export {
    ($($functions:tt)*) => { farcall_trace::export! { crate::symbols::begin; $($functions)* } };
}

/// [`farcall_trace::unsupported`] with this library's trace.
macro_rules! unsupported {
    ($($functions:tt)*) => { farcall_trace::unsupported! { crate::symbols::begin; $($functions)* } };
}

pub(crate) use {export, unsupported};

/// Returns whether calls are traced, for [`farcall_trace::export`].
pub fn begin() -> Option<()> {
    farcall_trace::is_on().then_some(())
}
