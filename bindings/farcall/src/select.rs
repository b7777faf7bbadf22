//! Which provider a program uses, chosen from what people say, and explained to them.
//!
//! The rules are few, because silent choices of a transport are what people curse most:
//!
//! * what is asked for is taken, or fails with the reason; nothing else is tried;
//! * by itself a program takes the software RNIC: between processes of one host no RNIC is faster;
//! * a client that was not told takes an RNIC if the server it connects to serves on one: then both have it.

use std::fmt;
use std::str::FromStr;

use farcall_ibv::{Ibv, survey};
use farcall_softnic::SoftNic;
use farcall_verbs::{PortChoice, Provider, Result};
use serde::{Deserialize, Serialize};

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wish {
    /// Whatever fits.
    #[default]
    Auto,
    /// The software RNIC.
    Softnic,
    /// The system's libibverbs.
    Ibv,
}

impl Wish {
    /// All, in the order of their listing.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Softnic, Self::Ibv];

    /// The word for it.
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

/// What a program was told about its provider.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Selection {
    /// Which provider.
    pub wish: Wish,
    /// Which device of libibverbs; by default the first with an active port.
    pub device: Option<String>,
    /// Which of its GIDs; by default the best.
    pub gid_index: Option<u32>,
}

impl Selection {
    /// The software RNIC.
    pub fn softnic() -> Self {
        Self { wish: Wish::Softnic, ..Self::default() }
    }

    /// The system's libibverbs.
    pub fn ibv() -> Self {
        Self { wish: Wish::Ibv, ..Self::default() }
    }

    /// Whether libibverbs is asked for: also by naming a device or a GID, which only it has several of.
    fn wants_ibv(&self) -> bool {
        let names_one = self.device.is_some() || self.gid_index.is_some();
        self.wish == Wish::Ibv || (self.wish == Wish::Auto && names_one)
    }

    /// The options that make another process of this program choose the same.
    pub fn args(&self) -> Vec<String> {
        let mut args = vec!["--provider".to_owned(), self.wish.to_string()];
        args.extend(self.device.iter().flat_map(|device| ["--device".to_owned(), device.clone()]));
        args.extend(self.gid_index.iter().flat_map(|index| ["--gid-index".to_owned(), index.to_string()]));
        args
    }

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

    /// The provider of a server, or of both ends of a measurement.
    ///
    /// # Errors
    /// If what is asked for cannot be used here; the text says why and what to do.
    pub fn choose(&self) -> Result<Chosen> {
        if self.wants_ibv() {
            let (provider, device) = (self.ibv_provider(), first_device(&self.ibv_provider())?);
            let explanation = format!("ibv, as asked for: {device}");
            let selection = Self { wish: Wish::Ibv, ..self.clone() };
            return Ok(Chosen { provider: Box::new(provider), selection, explanation });
        }
        // With a group that does not exist, every peer of another user would be refused later, one by one.
        farcall_softnic::configured_group()?;
        let explanation = match self.wish {
            Wish::Softnic => format!("softnic, as asked for: {}", SoftNic::ways()),
            _ => format!("softnic: {}; {}", SoftNic::ways(), rnic_note()),
        };
        Ok(Chosen { provider: Box::new(SoftNic::new()), selection: Self::softnic(), explanation })
    }

    /// Connects a client: by what is asked for, or by the software RNIC and, where the server turns out to be on an
    /// RNIC and there is one here, by that. `is_misfit` tells a refusal for the wrong provider from other failures.
    ///
    /// # Errors
    /// The first connection's.
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

/// A provider with the reason for it.
pub struct Chosen {
    /// The provider.
    pub provider: Box<dyn Provider>,
    /// What to tell another process of this program, so that it chooses the same.
    pub selection: Selection,
    /// Why this one, and what it uses, for people.
    pub explanation: String,
}

/// Opens the first device and says how it will be reached.
fn first_device(provider: &Ibv) -> Result<String> {
    let devices = provider.devices()?;
    let device = devices
        .first()
        .ok_or_else(|| farcall_verbs::Error::invalid("choose provider", survey::NO_DEVICES))?;
    let port = PortChoice::automatic(&*device.open()?)?;
    Ok(format!("{}, {port}", device.name()))
}

/// An RNIC that could be used here, by the kernel's word.
fn usable_rnic() -> Option<survey::KernelDevice> {
    let is_usable = |device: &survey::KernelDevice| {
        device.has_active_port && !device.is_iwarp && device.node_state() == survey::NodeState::Usable
    };
    survey::kernel_devices().into_iter().find(is_usable)
}

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
        // Depending on the machine the library, the kernel's RDMA or the device is what is missing.
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
