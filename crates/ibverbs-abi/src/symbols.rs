//! Symbol versions: which node of the original library a function is found under.

/// Exports C functions, each under its version node as the default version. Shown if there is a trace.
macro_rules! export {
    ($($node:literal { $($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)* })*) => {
        $($(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                let run = move || $(-> $ret)? { $body };
                if !farcall_trace::is_on() {
                    return run();
                }
                $crate::symbols::shown!($name($($arg),*), run)
            }

            std::arch::global_asm!(concat!(
                ".symver ", stringify!($name), ", ", stringify!($name), "@@", $node
            ));
        )*)*
    };
}

pub(crate) use export;
pub(crate) use farcall_trace::shown;
