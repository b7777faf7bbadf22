//! The file of a profile: what it holds, where it is, what is refused.

use crate::failure::{Exit, Failure};
use crate::whole_file;
use farcall::rpc::tune::{LinkProfile, ReadCost};
use farcall::select::Chosen;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The layout below.
const FORMAT: u32 = 1;
/// No profile is longer.
const LEN_BYTES_MAX: u64 = 64 << 10;
const REMEDY: &str = "write a profile of this device: farcall tune";

/// A profile with what it holds for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProfileFile {
    /// [`FORMAT`].
    farcall_profile: u32,
    /// The version of farcall that measured.
    version: String,
    /// See [`device_of`].
    device: String,
    reads: Vec<ReadLine>,
    reply_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadLine {
    len_bytes: u32,
    alone_ns: u64,
    each_ns: u64,
}

/// The device of a provider: `provider/device`.
pub(super) fn device_of(chosen: &Chosen) -> Result<String, Failure> {
    let provider = &*chosen.provider;
    let failed = |why: &dyn Display| Failure::new("cannot tell the device").at(provider.name()).why(why);
    let devices = provider.devices().map_err(|error| failed(&error))?;
    let device = devices.first().ok_or_else(|| failed(&"there is none").remedy("see: farcall doctor"))?;
    Ok(format!("{}/{}", provider.name(), device.name()))
}

/// A file in the user's own directory.
pub(super) fn usual_place(device: &str) -> Result<PathBuf, Failure> {
    let own = farcall_shm::own_directory().map_err(|why| {
        Failure::new("there is no directory for the profile").why(why).remedy("name a file: --out FILE")
    })?;
    Ok(own.join(format!("profile-{}.json", device.replace('/', "-"))))
}

impl ProfileFile {
    pub(super) fn new(device: &str, profile: &LinkProfile) -> Self {
        let line = |read: &ReadCost| ReadLine {
            len_bytes: read.len_bytes,
            alone_ns: read.alone_ns,
            each_ns: read.each_ns,
        };
        Self {
            farcall_profile: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            device: device.to_owned(),
            reads: profile.reads().iter().map(line).collect(),
            reply_ns: profile.reply_ns(),
        }
    }

    /// Writes the whole file, or leaves what was there.
    pub(super) fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from);
        let written = text.and_then(|text| whole_file::write(path, format!("{text}\n").as_bytes()));
        written.map_err(|error| {
            Failure::because("cannot write the profile", &error)
                .at(path.display())
                .remedy("name a file in a directory that you may write: --out FILE")
        })
    }

    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let failure = |what: &str, error: &dyn std::error::Error| {
            Failure::because(what, error).at(path.display()).remedy(REMEDY).exit(Exit::Usage)
        };
        // A pipe or a device that gives nothing would be waited for.
        let open = || {
            File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).and_then(|file| {
                let mut text = Vec::new();
                file.take(LEN_BYTES_MAX).read_to_end(&mut text).map(|_| text)
            })
        };
        let text = open().map_err(|error| failure("cannot read the profile", &error))?;
        serde_json::from_slice(&text).map_err(|error| failure("the file is no profile", &error))
    }

    /// What was measured, if it holds for `device` and this program.
    pub(super) fn check(&self, device: &str, path: &Path) -> Result<LinkProfile, Failure> {
        let refused = |why: String| {
            Failure::new("the profile cannot be used")
                .at(path.display())
                .why(why)
                .remedy(REMEDY)
                .exit(Exit::Usage)
        };
        let must_be = |what: &str, here: &str, there: &str| match here == there {
            true => Ok(()),
            false => Err(refused(format!("it is of {what} {there:?}, this is {here:?}"))),
        };
        must_be("format", &FORMAT.to_string(), &self.farcall_profile.to_string())?;
        must_be("farcall", env!("CARGO_PKG_VERSION"), &self.version)?;
        must_be("device", device, &self.device)?;
        let cost = |line: &ReadLine| ReadCost {
            len_bytes: line.len_bytes,
            alone_ns: line.alone_ns,
            each_ns: line.each_ns,
        };
        LinkProfile::new(self.reads.iter().map(cost).collect(), self.reply_ns)
            .map_err(|error| refused(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> LinkProfile {
        let read = |len_bytes, each_ns| ReadCost { len_bytes, alone_ns: 2_000, each_ns };
        LinkProfile::new(vec![read(64, 90), read(4_096, 900)], 480).unwrap()
    }

    fn refusal(file: &ProfileFile) -> String {
        file.check("softnic/softnic0", Path::new("p.json")).unwrap_err().to_string()
    }

    #[test]
    fn a_profile_holds_for_its_device_and_version_only() {
        let file = ProfileFile::new("softnic/softnic0", &profile());
        assert_eq!(file.check("softnic/softnic0", Path::new("p.json")).unwrap(), profile());
        let text = refusal(&ProfileFile { device: "ibv/mlx5_0".into(), ..file.clone() });
        assert!(text.contains("ibv/mlx5_0") && text.contains("farcall tune"), "{text}");
        let text = refusal(&ProfileFile { version: "0.0.9".into(), ..file.clone() });
        assert!(text.contains("0.0.9"), "{text}");
        let text = refusal(&ProfileFile { farcall_profile: 2, ..file.clone() });
        assert!(text.contains("format \"2\""), "{text}");
        let text = refusal(&ProfileFile { reply_ns: 0, ..file.clone() });
        assert!(text.contains("0 ns is no time"), "{text}");
        let mut mixed_up = file.clone();
        mixed_up.reads.reverse();
        assert!(refusal(&mixed_up).contains("out of order"));
        assert!(refusal(&ProfileFile { reads: Vec::new(), ..file }).contains("no READ was measured"));
    }
}
