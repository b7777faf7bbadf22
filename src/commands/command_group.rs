//! The macro that declares a group of commands.

/// Declares the enum of a group of commands, and its `run`, which runs the command that the user named.
///
/// Commands of the block `always` are in each build. Those of the block `full` are in builds with this feature; in other
/// builds, [`MissingFeature`](super::missing_feature::MissingFeature) has their names.
macro_rules! command_group {
    (
        $(#[$($attribute:tt)*])*
        $visibility:vis enum $group:ident {
            always { $( $(#[$($of_always:tt)*])* $always:ident($($always_type:ident)::+), )* }
            $( full { $( $(#[$($of_full:tt)*])* $full:ident($($full_type:ident)::+), )* } )?
        }
    ) => {
        #[derive(Debug, clap::Subcommand)]
        $(#[$($attribute)*])*
        $visibility enum $group {
            $( $(#[$($of_always)*])* $always($($always_type)::+), )*
            $( $(
                #[cfg(feature = "full")]
                $(#[$($of_full)*])*
                $full($($full_type)::+),
                #[cfg(not(feature = "full"))]
                $(#[$($of_full)*])*
                $full(crate::commands::missing_feature::MissingFeature),
            )* )?
        }

        impl $group {
            /// Runs the command.
            ///
            /// # Errors
            /// Returns the failure of the command.
            pub fn run(self, console: crate::console::Console) -> Result<crate::failure::Exit, crate::failure::Failure> {
                match self {
                    $( Self::$always(command) => command.run(console), )*
                    $( $( Self::$full(command) => command.run(console), )* )?
                }
            }
        }
    };
}

pub(crate) use command_group;
