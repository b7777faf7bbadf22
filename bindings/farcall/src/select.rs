//! Selection of the provider that a program uses, with an explanation for the user.
//!
//! There are only three rules, because a transport that is chosen silently is hard to diagnose:
//!
//! * an explicitly selected provider is used, or the operation fails with the reason; no other one is tried;
//! * by default, a program uses the software RNIC: between processes of one host no RNIC is faster;
//! * by default, a client uses an RNIC if its server serves on one and its own host has one.

use std::fmt;
use std::str::FromStr;

use farcall_ibv::{Ibv, survey};
use farcall_link::Nic;
use farcall_softnic::SoftNic;
use farcall_verbs::{Provider, Result};
use serde::{Deserialize, Serialize};

/// Provider that the user selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderChoice {
    /// Chosen by the rules of this module.
    #[default]
    Auto,
    /// The software RNIC.
    Softnic,
    /// The system's libibverbs.
    Ibv,
}

impl ProviderChoice {
    /// All variants, in the order of their listing.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Softnic, Self::Ibv];

    /// Returns the name of the variant in options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Softnic => farcall_softnic::NAME,
            Self::Ibv => farcall_ibv::NAME,
        }
    }
}

impl fmt::Display for ProviderChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ProviderChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|choice| choice.name() == text)
            .ok_or_else(|| format!("{text:?} is no provider; there are auto, softnic and ibv"))
    }
}

/// The user's selection of a provider, a device and a GID.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Selection {
    /// The provider.
    pub provider: ProviderChoice,
    /// Name of the libibverbs device; by default the first one with an active port.
    pub device: Option<String>,
    /// Index of its GID; by default the best one.
    pub gid_index: Option<u32>,
}

impl Selection {
    /// Selects the software RNIC.
    pub fn softnic() -> Self {
        Self { provider: ProviderChoice::Softnic, ..Self::default() }
    }

    /// Selects the system's libibverbs.
    pub fn ibv() -> Self {
        Self { provider: ProviderChoice::Ibv, ..Self::default() }
    }

    /// Returns whether libibverbs is selected. A device or a GID also selects it, since only libibverbs has several.
    fn wants_ibv(&self) -> bool {
        let names_one = self.device.is_some() || self.gid_index.is_some();
        self.provider == ProviderChoice::Ibv || (self.provider == ProviderChoice::Auto && names_one)
    }

    /// Returns the options with which another process of this program makes the same selection.
    pub fn args(&self) -> Vec<String> {
        let mut args = vec!["--provider".to_owned(), self.provider.to_string()];
        args.extend(self.device.iter().flat_map(|device| ["--device".to_owned(), device.clone()]));
        args.extend(self.gid_index.iter().flat_map(|index| ["--gid-index".to_owned(), index.to_string()]));
        args
    }

    /// Creates the libibverbs provider with the selected device and GID.
    fn ibv_provider(&self) -> Ibv {
        let mut ibv = Ibv::new();
        if let Some(device) = &self.device {
            ibv = ibv.device(device);
        }
        if let Some(index) = self.gid_index {
            ibv = ibv.gid_index(index);
        }
        ibv
    }

    /// Returns the selected provider, without opening a device.
    ///
    /// # Errors
    /// If the software RNIC is selected, and the group that may use it is unknown.
    pub fn provider(&self) -> Result<Box<dyn Provider>> {
        if self.wants_ibv() {
            return Ok(Box::new(self.ibv_provider()));
        }
        // Checked here, because with a group that does not exist each peer of another user would be refused later.
        farcall_softnic::configured_group()?;
        Ok(Box::new(SoftNic::new()))
    }

    /// Opens the device of a server, or of both ends of a measurement.
    ///
    /// # Errors
    /// If the selected provider cannot be used on this host. The text contains the reason and a remedy.
    pub fn open(&self) -> Result<SelectedNic> {
        if self.wants_ibv() {
            let nic = open_rnic(&self.ibv_provider())?;
            let explanation = format!("ibv, as asked for: {}, {}", nic.device(), nic.port());
            return Ok(SelectedNic {
                nic,
                selection: Self { provider: ProviderChoice::Ibv, ..self.clone() },
                explanation,
            });
        }
        let nic = Nic::open(&*self.provider()?)?;
        let explanation = match self.provider {
            ProviderChoice::Softnic => format!("softnic, as asked for: {}", SoftNic::transports()),
            _ => format!("softnic: {}; {}", SoftNic::transports(), rnic_note()),
        };
        Ok(SelectedNic { nic, selection: Self::softnic(), explanation })
    }

    /// Connects a client with the selected provider. By default this is the software RNIC; if the server turns out to
    /// use an RNIC, and this host has one, the client connects over the RNIC instead. `is_misfit` returns whether an
    /// error is a refusal because of the wrong provider.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub fn connect<T, E: From<farcall_verbs::Error>>(
        &self,
        mut connect: impl FnMut(&Nic) -> Result<T, E>,
        is_misfit: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        if self.wants_ibv() {
            return connect(&Nic::open(&self.ibv_provider())?);
        }
        match connect(&Nic::open(&SoftNic::new())?) {
            Err(error)
                if self.provider == ProviderChoice::Auto && is_misfit(&error) && usable_rnic().is_some() =>
            {
                connect(&Nic::open(&Ibv::new())?)
            }
            other => other,
        }
    }
}

/// An open device with the reason for its choice.
#[derive(Debug)]
pub struct SelectedNic {
    /// The device.
    pub nic: Nic,
    /// Selection with which another process of this program chooses the same provider.
    pub selection: Selection,
    /// Explanation for the user: the reason for the choice, and the transports used.
    pub explanation: String,
}

/// Opens the first device.
fn open_rnic(provider: &Ibv) -> Result<Nic> {
    if provider.devices()?.is_empty() {
        return Err(farcall_verbs::Error::invalid("choose provider", survey::NO_DEVICES));
    }
    Nic::open(provider)
}

/// Returns an RNIC that the kernel reports as usable.
fn usable_rnic() -> Option<survey::KernelDevice> {
    let is_usable = |device: &survey::KernelDevice| {
        device.has_active_port && !device.is_iwarp && device.node_state() == survey::NodeState::Usable
    };
    survey::kernel_devices().into_iter().find(is_usable)
}

/// Returns a note on the usable RNIC for the explanation.
fn rnic_note() -> String {
    match usable_rnic() {
        Some(rnic) => format!("{} has an active port: --provider ibv uses it, also between hosts", rnic.name),
        None => "there is no RNIC to use (run farcall doctor for details)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_name_of_each_choice() {
        for choice in ProviderChoice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("tcp".parse::<ProviderChoice>().unwrap_err().contains("softnic"));
    }

    #[test]
    fn selects_the_software_rnic_by_default_and_explains_it() {
        let selected = Selection::default().open().unwrap();
        assert_eq!(selected.nic.provider(), "softnic");
        assert!(selected.explanation.starts_with("softnic: this host by shared memory"));
    }

    #[test]
    fn selects_libibverbs_for_a_named_device() {
        let selection = Selection { device: Some("no-such-device".into()), ..Selection::default() };
        assert!(selection.wants_ibv());
        let error = selection.open().map(|selected| selected.explanation).unwrap_err().to_string();
        // Depending on the machine, the library, the RDMA support of the kernel or the device is missing.
        assert!(error.contains("no RDMA") || error.contains("libibverbs"), "{error}");
    }

    #[test]
    fn tries_an_explicit_provider_once() {
        let mut tried = Vec::new();
        let result = Selection::softnic().connect(
            |nic| {
                tried.push(nic.provider());
                Err::<(), _>(farcall_verbs::Error::invalid("test", "misfit"))
            },
            |_| true,
        );
        assert!(result.unwrap_err().to_string().contains("misfit"));
        assert_eq!(tried, ["softnic"]);
    }

    #[test]
    fn repeats_no_other_failure() {
        let mut count = 0;
        let result = Selection::default().connect(
            |_| {
                count += 1;
                Err::<(), _>(farcall_verbs::Error::invalid("test", "unreachable"))
            },
            |error| error.to_string().contains("misfit"),
        );
        assert!(result.unwrap_err().to_string().contains("unreachable"));
        assert_eq!(count, 1);
    }
}
