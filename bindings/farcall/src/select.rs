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
use farcall_softnic::SoftNic;
use farcall_verbs::{PortChoice, Provider, Result};
use serde::{Deserialize, Serialize};

/// Provider that the user selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wish {
    /// Chosen by the rules of this module.
    #[default]
    Auto,
    /// The software RNIC.
    Softnic,
    /// The system's libibverbs.
    Ibv,
}

impl Wish {
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

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|wish| wish.name() == text)
            .ok_or_else(|| format!("{text:?} is no provider; there are auto, softnic and ibv"))
    }
}

/// The user's selection of a provider, a device and a GID.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Selection {
    /// The provider.
    pub wish: Wish,
    /// Name of the libibverbs device; by default the first one with an active port.
    pub device: Option<String>,
    /// Index of its GID; by default the best one.
    pub gid_index: Option<u32>,
}

impl Selection {
    /// Selects the software RNIC.
    pub fn softnic() -> Self {
        Self { wish: Wish::Softnic, ..Self::default() }
    }

    /// Selects the system's libibverbs.
    pub fn ibv() -> Self {
        Self { wish: Wish::Ibv, ..Self::default() }
    }

    /// Returns whether libibverbs is selected. A device or a GID also selects it, since only libibverbs has several.
    fn wants_ibv(&self) -> bool {
        let names_one = self.device.is_some() || self.gid_index.is_some();
        self.wish == Wish::Ibv || (self.wish == Wish::Auto && names_one)
    }

    /// Returns the options with which another process of this program makes the same selection.
    pub fn args(&self) -> Vec<String> {
        let mut args = vec!["--provider".to_owned(), self.wish.to_string()];
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

    /// Returns the provider of a server, or of both ends of a measurement.
    ///
    /// # Errors
    /// If the selected provider cannot be used on this host. The text contains the reason and a remedy.
    pub fn choose(&self) -> Result<Chosen> {
        if self.wants_ibv() {
            let (provider, device) = (self.ibv_provider(), first_device(&self.ibv_provider())?);
            let explanation = format!("ibv, as asked for: {device}");
            let selection = Self { wish: Wish::Ibv, ..self.clone() };
            return Ok(Chosen { provider: Box::new(provider), selection, explanation });
        }
        // Checked here, because with a group that does not exist each peer of another user would be refused later.
        farcall_softnic::configured_group()?;
        let explanation = match self.wish {
            Wish::Softnic => format!("softnic, as asked for: {}", SoftNic::transports()),
            _ => format!("softnic: {}; {}", SoftNic::transports(), rnic_note()),
        };
        Ok(Chosen { provider: Box::new(SoftNic::new()), selection: Self::softnic(), explanation })
    }

    /// Connects a client with the selected provider. By default this is the software RNIC; if the server turns out to
    /// use an RNIC, and this host has one, the client connects over the RNIC instead. `is_misfit` returns whether an
    /// error is a refusal because of the wrong provider.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub fn connect<T, E>(
        &self,
        mut connect: impl FnMut(&dyn Provider) -> Result<T, E>,
        is_misfit: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        if self.wants_ibv() {
            return connect(&self.ibv_provider());
        }
        match connect(&SoftNic::new()) {
            Err(error) if self.wish == Wish::Auto && is_misfit(&error) && usable_rnic().is_some() => {
                connect(&Ibv::new())
            }
            other => other,
        }
    }
}

/// A provider with the reason for its choice.
pub struct Chosen {
    /// The provider.
    pub provider: Box<dyn Provider>,
    /// Selection with which another process of this program chooses the same provider.
    pub selection: Selection,
    /// Explanation for the user: the reason for the choice, and the transports used.
    pub explanation: String,
}

/// Opens the first device, and returns its name and port as text.
fn first_device(provider: &Ibv) -> Result<String> {
    let devices = provider.devices()?;
    let device = devices
        .first()
        .ok_or_else(|| farcall_verbs::Error::invalid("choose provider", survey::NO_DEVICES))?;
    let port = PortChoice::automatic(&*device.open()?)?;
    Ok(format!("{}, {port}", device.name()))
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
        None => "there is no RNIC to use (farcall doctor tells more)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_wishes_match() {
        for wish in Wish::ALL {
            assert_eq!(wish.to_string().parse(), Ok(wish));
        }
        assert!("tcp".parse::<Wish>().unwrap_err().contains("softnic"));
    }

    #[test]
    fn by_itself_a_program_takes_the_software_rnic_and_says_so() {
        let chosen = Selection::default().choose().unwrap();
        assert_eq!(chosen.provider.name(), "softnic");
        assert!(chosen.explanation.starts_with("softnic: this host by shared memory"));
    }

    #[test]
    fn a_device_that_is_named_is_libibverbs_and_nothing_else() {
        let selection = Selection { device: Some("no-such-device".into()), ..Selection::default() };
        assert!(selection.wants_ibv());
        let error = selection.choose().map(|chosen| chosen.explanation).unwrap_err().to_string();
        // Depending on the machine, the library, the RDMA support of the kernel or the device is missing.
        assert!(error.contains("no RDMA") || error.contains("libibverbs"), "{error}");
    }

    #[test]
    fn a_client_that_may_not_choose_tries_once() {
        let mut tried = Vec::new();
        let result = Selection::softnic().connect(
            |provider| {
                tried.push(provider.name());
                Err::<(), _>("misfit")
            },
            |_| true,
        );
        assert_eq!((result, tried), (Err("misfit"), vec!["softnic"]));
    }

    #[test]
    fn other_failures_are_not_tried_again() {
        let mut count = 0;
        let result = Selection::default().connect(
            |_| {
                count += 1;
                Err::<(), _>("unreachable")
            },
            |error| *error == "misfit",
        );
        assert_eq!((result, count), (Err("unreachable"), 1));
    }
}
