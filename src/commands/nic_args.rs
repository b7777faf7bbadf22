//! The options that select provider, device and GID.

use crate::failure::Failure;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use farcall::select::{ProviderChoice, SelectedNic, Selection};

fn provider_parser() -> impl TypedValueParser<Value = ProviderChoice> {
    PossibleValuesParser::new(ProviderChoice::ALL.map(ProviderChoice::name))
        .try_map(|text| text.parse::<ProviderChoice>())
}

/// Selection of the provider of verbs.
#[derive(Debug, Clone, Args)]
pub struct NicArgs {
    /// Provider of verbs: softnic is the software RNIC, ibv the libibverbs of the system, for any RNIC. With auto, a server
    /// uses softnic, and a client uses the provider of its server.
    #[arg(long, default_value_t = ProviderChoice::Auto, value_parser = provider_parser(), help_heading = "Provider")]
    provider: ProviderChoice,
    /// RDMA device (implies --provider ibv) [default: the first with an active port].
    #[arg(long, value_name = "NAME", help_heading = "Provider")]
    device: Option<String>,
    /// Entry of the GID table of the device (implies --provider ibv) [default: the one that farcall devices shows].
    #[arg(long, value_name = "INDEX", help_heading = "Provider")]
    gid_index: Option<u32>,
}

impl NicArgs {
    /// Returns the selection by these options.
    pub fn selection(&self) -> Selection {
        Selection { provider: self.provider, device: self.device.clone(), gid_index: self.gid_index }
    }

    /// Returns the same options for another process of this program.
    #[cfg(feature = "full")]
    pub fn to_arguments(&self) -> Vec<String> {
        let mut arguments = vec![format!("--provider={}", self.provider)];
        arguments.extend(self.device.iter().map(|device| format!("--device={device}")));
        arguments.extend(self.gid_index.iter().map(|index| format!("--gid-index={index}")));
        arguments
    }

    /// Returns whether any of the options was given.
    pub fn is_given(&self) -> bool {
        self.provider != ProviderChoice::Auto || self.device.is_some() || self.gid_index.is_some()
    }

    /// Opens the device of a server, or of both ends of a measurement.
    ///
    /// # Errors
    /// If the requested provider cannot be used.
    pub fn open(&self) -> Result<SelectedNic, Failure> {
        self.selection().open().map_err(|error| self.cannot_use(&error))
    }

    /// Returns the requested provider.
    ///
    /// # Errors
    /// If it cannot be used.
    #[cfg(feature = "full")]
    pub fn provider(&self) -> Result<Box<dyn farcall::verbs::Provider>, Failure> {
        self.selection().provider().map_err(|error| self.cannot_use(&error))
    }

    fn cannot_use(&self, error: &farcall::verbs::Error) -> Failure {
        Failure::because("cannot use the requested provider", error)
            .at(self.device.clone().unwrap_or_else(|| self.provider.to_string()))
            .remedy("list devices and problems: farcall doctor")
    }
}
