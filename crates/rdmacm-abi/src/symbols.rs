//! Symbol versions: which node of the original library a function is found under.

/// Exports C functions, each under its version node as the default version.
macro_rules! export {
    ($($node:literal { $($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)* })*) => {
        $($(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? $body

            std::arch::global_asm!(concat!(
                ".symver ", stringify!($name), ", ", stringify!($name), "@@", $node
            ));
        )*)*
    };
}

pub(crate) use export;
