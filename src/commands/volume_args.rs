//! The options for a volume: its name, and the file with its key.

use crate::failure::{Exit, Failure};
use clap::Args;
use farcall::memory::VolumeConfig;
use farcall_link::Entropy;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const KEY_BYTES: usize = 32;

/// A volume.
#[derive(Debug, Clone, Args)]
pub struct VolumeArgs {
    /// Name of the volume at the memory nodes, at most 64 bytes.
    #[arg(long, value_name = "NAME")]
    pub volume: String,
    /// File with the volume's key: 32 random bytes that only the file's owner can read.
    #[arg(long, value_name = "FILE")]
    pub volume_key: PathBuf,
}

impl VolumeArgs {
    /// Returns the volume with the key from its file.
    ///
    /// # Errors
    /// If the file does not exist, others can read it, or it is not a key.
    pub fn read(&self, holder: [u8; 16], metadata_bytes: u64) -> Result<VolumeConfig, Failure> {
        let key = read_key(&self.volume_key).map_err(|error| {
            Failure::because("cannot read the key of the volume", &error)
                .at(self.volume_key.display())
                .remedy("name the key with which the volume was created; only its owner may have access: chmod 600")
                .exit(Exit::Usage)
        })?;
        Ok(VolumeConfig::new(self.volume.clone(), key, holder, metadata_bytes))
    }

    /// Creates a key if there is none. Returns whether it did.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn make_key(&self) -> Result<bool, Failure> {
        make_key(&self.volume_key).map_err(|error| {
            Failure::because("cannot create a key for the volume", &error).at(self.volume_key.display())
        })
    }
}

fn read_key(path: &Path) -> io::Result<[u8; KEY_BYTES]> {
    // `O_NONBLOCK`: opening a FIFO does not wait for a writer; it is refused below.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut file = File::options().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if metadata.mode() & 0o077 != 0 || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("other users own it or can read it"));
    }
    if !metadata.is_file() || metadata.len() != KEY_BYTES as u64 {
        return Err(io::Error::other(format!("it has {} bytes; a key has {KEY_BYTES}", metadata.len())));
    }
    let mut key = [0; KEY_BYTES];
    file.read_exact(&mut key)?;
    Ok(key)
}

fn make_key(path: &Path) -> io::Result<bool> {
    let mut options = File::options();
    let mut file = match options.write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        opened => opened?,
    };
    file.write_all(&Entropy::System.bytes::<KEY_BYTES>()?)?;
    file.sync_all()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn creates_a_key_once_and_requires_private_access() {
        let dir = std::env::temp_dir().join(format!("farcall-key-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("key");
        assert!(read_key(&path).is_err());
        assert!(make_key(&path).unwrap());
        let key = read_key(&path).unwrap();
        assert!(!make_key(&path).unwrap());
        assert!(read_key(&path).unwrap() == key && key != [0; KEY_BYTES]);
        set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert!(read_key(&path).unwrap_err().to_string().contains("other users own it or can read it"));
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        write(&path, "short").unwrap();
        assert!(read_key(&path).unwrap_err().to_string().contains("it has 5 bytes"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
