//! Storage of the pages.

use std::fs::File;
use std::io;
use std::sync::Arc;

use farcall_files::Memory;
use farcall_link::os_random;
use farcall_memory::membership::{Directory, Joining, NODES_MAX};
use farcall_memory::{ClientConfig, OpenError, PAGE_BYTES, RemoteMemory, SpaceStatus};
use farcall_verbs::Provider;

use crate::pager::{PagerError, of};
use crate::pager_memory::OwnMemory;
use crate::run_paths::Config;
use crate::swap::{header, is_header};

/// Whether the memory has just become a swap area.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begun {
    Now,
    /// An earlier pager initialized it.
    Before,
}

/// The memory of a swap area.
pub(crate) enum Pages {
    /// On memory nodes. Nodes that register later are added; this ends before the memory is dropped.
    Nodes { _joining: Option<Joining>, memory: Arc<RemoteMemory> },
    /// In this process: the baseline for measurements.
    Own(Arc<OwnMemory>),
}

impl Pages {
    /// Opens the memory. Resumes that of the previous pager if the resume file contains its state.
    pub fn open(
        config: &Config,
        provider: Arc<dyn Provider>,
        kept: Option<File>,
    ) -> Result<Self, PagerError> {
        if config.nodes.is_empty() {
            return Self::open_own(config, kept);
        }
        let memory = Arc::new(open(config, provider, kept)?);
        Ok(Self::Nodes { _joining: join(config, &memory)?, memory })
    }

    /// Pages in this process are lost when it exits. The resume file is marked, so that a following pager reports
    /// that.
    fn open_own(config: &Config, kept: Option<File>) -> Result<Self, PagerError> {
        let cannot = of("cannot keep pages in the pager");
        if let Some(kept) = kept {
            if kept.metadata().map_err(&cannot)?.len() > 0 {
                return Err(cannot(io::Error::other("they were in the one that died")));
            }
            kept.set_len(1).map_err(&cannot)?;
        }
        Ok(Self::Own(Arc::new(OwnMemory::new(config.size_bytes))))
    }

    /// Initializes the memory as a swap area if it is none yet, and allocates all of its slabs, so that a lack of
    /// capacity is reported now. The header is written last.
    pub fn begin(&self, config: &Config) -> Result<Begun, PagerError> {
        let uuid = os_random().map_err(of("no random number"))?;
        let header = header(config.size_bytes, uuid);
        let memory: &RemoteMemory = match self {
            Self::Nodes { memory, .. } => memory,
            Self::Own(memory) => {
                let written = memory.write(0, &header).map_err(io::Error::from);
                return written.map(|()| Begun::Now).map_err(of("cannot write to a swap area"));
            }
        };
        let mut first = [0; PAGE_BYTES];
        memory.read(0, &mut first)?;
        if is_header(&first) {
            return Ok(Begun::Before);
        }
        let slab_bytes = usize::try_from(config.slab_bytes).unwrap_or(usize::MAX);
        for at in (0..config.size_bytes).step_by(slab_bytes).skip(1) {
            memory.write(at, &[0])?;
        }
        memory.write(0, &header)?;
        Ok(Begun::Now)
    }

    /// Returns the memory that serves the kernel's requests.
    pub fn memory(&self) -> Arc<dyn Memory> {
        match self {
            Self::Nodes { memory, .. } => Arc::clone(memory) as _,
            Self::Own(memory) => Arc::clone(memory) as _,
        }
    }

    /// Returns the status of nodes and replicas.
    pub fn status(&self) -> SpaceStatus {
        match self {
            Self::Nodes { memory, .. } => memory.status(),
            Self::Own(_) => SpaceStatus::default(),
        }
    }
}

fn open(config: &Config, provider: Arc<dyn Provider>, kept: Option<File>) -> Result<RemoteMemory, OpenError> {
    let config = ClientConfig {
        name: format!("page {}", std::process::id()),
        nodes: config.nodes.iter().map(ToString::to_string).collect(),
        nodes_max: if config.directory.is_some() { NODES_MAX } else { 0 },
        size_bytes: config.size_bytes,
        replicas: config.replicas.into(),
        slab_bytes: config.slab_bytes,
        // The kernel requests many pages at once. A dedicated thread that keeps polling receives them sooner, if a
        // processor is available.
        callers_drive: false,
        ..ClientConfig::default()
    };
    match kept {
        Some(kept) => RemoteMemory::resume(provider, config, kept),
        None => RemoteMemory::open(provider, config),
    }
}

/// Starts a task that adds nodes which register later.
fn join(config: &Config, memory: &Arc<RemoteMemory>) -> Result<Option<Joining>, PagerError> {
    let Some(directory) = &config.directory else { return Ok(None) };
    let parsed = directory.parse::<Directory>().map_err(io::Error::other);
    let joining = parsed.and_then(|directory| Joining::start(directory, memory));
    joining.map(Some).map_err(of("cannot look for memory nodes"))
}
