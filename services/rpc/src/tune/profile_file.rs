//! The file of a profile: its contents, its path, and its validation.

use farcall_link::Nic;
use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use farcall_shm::trusted_variable;
use farcall_verbs::with_sources;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{InvalidProfile, LinkProfile, Posting, ReadCost};

/// Version of the layout below.
const FORMAT: u32 = 2;
/// Maximum length of a profile.
const LEN_BYTES_MAX: u64 = 64 << 10;

/// Location of the other end: the path through this host's own RNIC has other costs than a path over a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// This host.
    ThisHost,
    /// Another host.
    AnotherHost,
}

/// Validity of a profile, in addition to the version that measured it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// `provider/device`.
    pub device: String,
    /// Location of the other end.
    pub peer: Peer,
}

/// A profile with its validity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFile {
    farcall_profile: u32,
    version: String,
    device: String,
    peer: Peer,
    reads: Vec<ReadLine>,
    reply_ns: u64,
    posting: Option<PostingLine>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadLine {
    len_bytes: u32,
    alone_ns: u64,
    each_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PostingLine {
    inline_max_bytes: u32,
    signal_every: u16,
    idle_turn_ns: u64,
    wake_ns: u64,
}

/// Why a file cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("cannot read the profile")]
    Unreadable(#[from] std::io::Error),
    /// The file is not a profile.
    #[error("the file is no profile")]
    NotOne(#[from] serde_json::Error),
    /// The profile is valid for another device, peer or version.
    #[error("it is of {what} {there:?}, this is {here:?}")]
    Other {
        /// Format, version, device or peer.
        what: &'static str,
        /// The value in the file.
        there: String,
        /// The requested value.
        here: String,
    },
    /// The numbers are not those of a valid connection.
    #[error(transparent)]
    Invalid(#[from] InvalidProfile),
}

impl Peer {
    /// Returns the location of the server at an address. Names other than `localhost` count as other hosts.
    pub fn at(address: &str) -> Self {
        let is_here = match address.parse::<SocketAddr>() {
            // `bind` succeeds only for addresses of this host.
            Ok(address) => UdpSocket::bind((address.ip(), 0)).is_ok(),
            Err(_) => address.rsplit_once(':').is_some_and(|(host, _)| host == "localhost"),
        };
        if is_here { Self::ThisHost } else { Self::AnotherHost }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::ThisHost => "this-host",
            Self::AnotherHost => "another-host",
        }
    }
}

impl Scope {
    /// Returns the scope of a device and of servers there.
    pub fn of(nic: &Nic, peer: Peer) -> Self {
        Self { device: format!("{}/{}", nic.provider(), nic.device()), peer }
    }

    /// Returns the default path of the profile: in `$XDG_CACHE_HOME/farcall`, or `~/.cache/farcall`. `None` if neither
    /// variable is set, or the process has more privileges than the user that started it.
    pub fn default_path(&self) -> Option<PathBuf> {
        let folder = |name| trusted_variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
        Some(self.path_below(&cache))
    }

    fn path_below(&self, cache: &Path) -> PathBuf {
        let name = format!("profile-{}-{}.json", self.device.replace('/', "-"), self.peer.name());
        cache.join("farcall").join(name)
    }
}

impl ProfileFile {
    /// Creates the contents of a file.
    pub fn new(scope: &Scope, profile: &LinkProfile) -> Self {
        let line = |read: &ReadCost| ReadLine {
            len_bytes: read.len_bytes,
            alone_ns: read.alone_ns,
            each_ns: read.each_ns,
        };
        let posting = |Posting { inline_max_bytes, signal_every, idle_turn_ns, wake_ns }| PostingLine {
            inline_max_bytes,
            signal_every,
            idle_turn_ns,
            wake_ns,
        };
        Self {
            farcall_profile: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            device: scope.device.clone(),
            peer: scope.peer,
            reads: profile.reads().iter().map(line).collect(),
            reply_ns: profile.reply_ns(),
            posting: profile.posting().map(posting),
        }
    }

    /// Returns the contents as JSON.
    ///
    /// # Errors
    /// Never returns an error in practice: numbers and strings can always be represented in JSON.
    pub fn to_json(&self) -> Result<String, ProfileError> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Parses the contents of a file.
    ///
    /// # Errors
    /// Returns an error if they are not a profile.
    pub fn parse(bytes: &[u8]) -> Result<Self, ProfileError> {
        #[derive(Deserialize)]
        struct Format {
            farcall_profile: u32,
        }
        // Checked first, because other formats have other fields.
        let Format { farcall_profile } = serde_json::from_slice(bytes)?;
        must_be("format", FORMAT.to_string(), farcall_profile.to_string())?;
        Ok(serde_json::from_slice(bytes)?)
    }

    /// Reads a file. Never blocks on a pipe or a device.
    ///
    /// # Errors
    /// Returns an error if it cannot be read, or is not a profile.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let file = File::options().read(true).custom_flags(O_NONBLOCK).open(path)?;
        let mut bytes = Vec::new();
        file.take(LEN_BYTES_MAX).read_to_end(&mut bytes)?;
        Self::parse(&bytes)
    }

    /// Returns the measurements, if they are valid for `scope` and this version.
    ///
    /// # Errors
    /// Returns an error if they are valid for another device, peer or version, or the numbers are out of range.
    pub fn check(&self, scope: &Scope) -> Result<LinkProfile, ProfileError> {
        must_be("farcall", env!("CARGO_PKG_VERSION").to_owned(), self.version.clone())?;
        must_be("device", scope.device.clone(), self.device.clone())?;
        must_be("peer", scope.peer.name().to_owned(), self.peer.name().to_owned())?;
        let cost = |line: &ReadLine| ReadCost {
            len_bytes: line.len_bytes,
            alone_ns: line.alone_ns,
            each_ns: line.each_ns,
        };
        let profile = LinkProfile::new(self.reads.iter().map(cost).collect(), self.reply_ns)?;
        let Some(PostingLine { inline_max_bytes, signal_every, idle_turn_ns, wake_ns }) = self.posting else {
            return Ok(profile);
        };
        Ok(profile.with_posting(Posting { inline_max_bytes, signal_every, idle_turn_ns, wake_ns })?)
    }
}

const O_NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;

fn must_be(what: &'static str, here: String, there: String) -> Result<(), ProfileError> {
    if here == there { Ok(()) } else { Err(ProfileError::Other { what, there, here }) }
}

/// Returns the profile that a client uses by default, if there is one, and as text its path, or why there is none.
pub(crate) fn find_profile(scope: &Scope) -> (Option<LinkProfile>, String) {
    let Some(path) = scope.default_path() else {
        return (None, "the usual costs, for there is no directory where a profile could be".into());
    };
    read_profile(&path, scope)
}

fn read_profile(path: &Path, scope: &Scope) -> (Option<LinkProfile>, String) {
    let place = path.display();
    match ProfileFile::read(path).and_then(|file| file.check(scope)) {
        Ok(profile) => (Some(profile), format!("the costs of the profile {place}")),
        Err(ProfileError::Unreadable(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            (None, format!("the usual costs, for there is no profile {place}; farcall tune writes one"))
        }
        Err(error) => (
            None,
            format!(
                "the usual costs, for {place} is ignored: {}; farcall tune writes a new one",
                with_sources(&error)
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Scope {
        Scope { device: "softnic/softnic0".into(), peer: Peer::ThisHost }
    }

    fn profile() -> LinkProfile {
        let read = |len_bytes, each_ns| ReadCost { len_bytes, alone_ns: 2_000, each_ns };
        let posting = Posting { inline_max_bytes: 64, signal_every: 16, idle_turn_ns: 20, wake_ns: 40_000 };
        LinkProfile::new(vec![read(64, 90), read(4_096, 900)], 480).unwrap().with_posting(posting).unwrap()
    }

    #[test]
    fn a_profile_holds_for_its_device_peer_and_version_only() {
        let file = ProfileFile::new(&here(), &profile());
        let read = ProfileFile::parse(file.to_json().unwrap().as_bytes()).unwrap();
        assert_eq!(read.check(&here()).unwrap(), profile());
        let refusal = |file: &ProfileFile| file.check(&here()).unwrap_err().to_string();
        let text = refusal(&ProfileFile { device: "ibv/mlx5_0".into(), ..file.clone() });
        assert!(text.contains("ibv/mlx5_0") && text.contains("softnic0"), "{text}");
        assert!(refusal(&ProfileFile { version: "0.0.9".into(), ..file.clone() }).contains("0.0.9"));
        assert!(refusal(&ProfileFile { peer: Peer::AnotherHost, ..file.clone() }).contains("another-host"));
        let text = refusal(&ProfileFile { reply_ns: 0, ..file.clone() });
        assert!(text.contains("0 ns is no time"), "{text}");
        let mut mixed_up = file.clone();
        mixed_up.reads.reverse();
        assert!(refusal(&mixed_up).contains("out of order"));
        let never = PostingLine { inline_max_bytes: 0, signal_every: 0, idle_turn_ns: 1, wake_ns: 1 };
        assert!(refusal(&ProfileFile { posting: Some(never), ..file.clone() }).contains("signal_every"));
        assert!(refusal(&ProfileFile { reads: Vec::new(), ..file }).contains("no READ was measured"));
    }

    #[test]
    fn ignores_a_mismatching_profile_and_states_why() {
        let folder = std::env::temp_dir().join(format!("farcall-profile-{}", std::process::id()));
        let path = here().path_below(&folder);
        assert!(path.ends_with("farcall/profile-softnic-softnic0-this-host.json"), "{}", path.display());
        let (known, why) = read_profile(&path, &here());
        assert!(
            known.is_none() && why.contains("there is no profile") && why.contains("farcall tune"),
            "{why}"
        );
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let good = ProfileFile::new(&here(), &profile());
        let written = |file: &ProfileFile| file.to_json().unwrap().into_bytes();
        let old_format = ProfileFile { farcall_profile: 1, ..good.clone() };
        for (bytes, reason) in [
            (b"\xff\0 not json".to_vec(), "no profile"),
            (Vec::new(), "no profile"),
            (vec![b' '; 1 << 20], "no profile"),
            (written(&ProfileFile { version: "0.0.9".into(), ..good.clone() }), "0.0.9"),
            (written(&ProfileFile { device: "ibv/mlx5_0".into(), ..good.clone() }), "ibv/mlx5_0"),
            (written(&old_format), "format \"1\""),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let (known, why) = read_profile(&path, &here());
            assert!(known.is_none() && why.contains("ignored") && why.contains(reason), "{reason}: {why}");
        }
        // A pipe without a writer: reading does not block on it.
        std::fs::remove_file(&path).unwrap();
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(read_profile(&path, &here()).1.contains("ignored"));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, written(&good)).unwrap();
        let (known, why) = read_profile(&path, &here());
        assert!(known == Some(profile()) && why.contains(&path.display().to_string()), "{why}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_peer_is_on_this_host_if_its_address_is() {
        for (address, peer) in [
            ("127.0.0.1:9", Peer::ThisHost),
            ("localhost:9", Peer::ThisHost),
            // Reserved for documentation: no host has it.
            ("192.0.2.1:9", Peer::AnotherHost),
            ("elsewhere.example:9", Peer::AnotherHost),
            ("", Peer::AnotherHost),
        ] {
            assert_eq!(Peer::at(address), peer, "{address}");
        }
    }
}
