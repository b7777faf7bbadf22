//! Names of the variants of enums.

/// Gives the variants of an enum their names: `ALL` in this order, `name`, and `Display`.
macro_rules! names {
    ($Type:ident { $($Variant:ident => $name:literal),+ $(,)? }) => {
        #[allow(dead_code)] // Not every enum of this crate is iterated over and printed.
        impl $Type {
            /// All variants.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$Variant),+];

            /// Returns the name of the variant.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $Type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
