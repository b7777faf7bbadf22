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

/// Runs a function and shows the call.
macro_rules! shown {
    ($name:ident($($arg:ident),*), $run:ident) => {{
        let Some(mut call) = farcall_trace::Call::begin(stringify!($name)) else { return $run() };
        $(call.look(stringify!($arg), $arg);)*
        // SAFETY: the arguments are what the man page asks for, or null.
        $(unsafe { call.argument(stringify!($arg), $arg) };)*
        call.executes();
        let returned = $run();
        // SAFETY: what the function returned.
        unsafe { call.returned(returned) };
        // SAFETY: as above; only what the call filled is looked at.
        $(unsafe { call.output(stringify!($arg), $arg) };)*
        call.end();
        returned
    }};
}

pub(crate) use {export, shown};
