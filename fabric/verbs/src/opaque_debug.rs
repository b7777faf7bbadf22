//! `Debug` of types whose fields are of no use to users.

/// Implements `Debug` for types. The output has the name of the type and the values of the methods that are named:
/// `opaque_debug!(Server { address }, Reply<'_>)`.
#[doc(hidden)]
#[macro_export]
macro_rules! opaque_debug {
    ($($type:ident $(<$lifetime:lifetime>)? $({ $($getter:ident),* })?),* $(,)?) => { $(
        impl ::core::fmt::Debug for $type $(<$lifetime>)? {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(stringify!($type))
                    $($(.field(stringify!($getter), &self.$getter()))*)?
                    .finish_non_exhaustive()
            }
        }
    )* };
}
