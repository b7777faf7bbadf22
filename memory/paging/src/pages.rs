//! Storage of the pages.

use farcall_link::Nic;
use std::fs::File;
use std::io;
use std::sync::Arc;

use farcall_files::Memory;
use farcall_link::os_random;
use farcall_memory::membership::{Directory, NODES_MAX, NodeDiscovery};
use farcall_memory::{ClientConfig, OpenError, PAGE_BYTES, RemoteMemory, SpaceStatus};

use crate::pager::{PagerError, of};
use crate::pager_memory::PagerMemory;
use crate::run_paths::Config;
use crate::swap::{header, is_header};

/// Whether the memory has just become a swap area.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SwapInit {
    Created,
    /// An earlier pager initialized it.
    Existing,
}

/// The memory of a swap area.
pub(crate) enum Pages {
    /// On memory nodes. Nodes that register later are added; this ends before the memory is dropped.
    Nodes { _discovery: Option<NodeDiscovery>, memory: Arc<RemoteMemory> },
    /// In this process: the baseline for measurements.
    Local(Arc<PagerMemory>),
}

impl Pages {
    /// Opens the memory. Resumes that of the previous pager if the resume file contains its state.
    pub fn open(config: &Config, nic: &Nic, resume_file: Option<File>) -> Result<Self, PagerError> {
        if config.nodes.is_empty() {
            return Self::open_local(config, resume_file);
        }
        let memory = Arc::new(open(config, nic, resume_file)?);
        Ok(Self::Nodes { _discovery: join(config, &memory)?, memory })
    }

    /// Pages in this process are lost when it exits. The resume file is marked, so that a following pager reports
    /// that.
    fn open_local(config: &Config, resume_file: Option<File>) -> Result<Self, PagerError> {
        let cannot = of("cannot keep pages in the pager");
        if let Some(resume_file) = resume_file {
            if resume_file.metadata().map_err(&cannot)?.len() > 0 {
                return Err(cannot(io::Error::other("they were in the pager that crashed")));
            }
            resume_file.set_len(1).map_err(&cannot)?;
        }
        Ok(Self::Local(Arc::new(PagerMemory::new(config.size_bytes))))
    }

    /// Initializes the memory as a swap area if it is none yet, and allocates all of its slabs, so that a lack of
    /// capacity is reported now. The header is written last.
    pub fn begin(&self, config: &Config) -> Result<SwapInit, PagerError> {
        let uuid = os_random().map_err(of("no random number"))?;
        let header = header(config.size_bytes, uuid);
        let memory: &RemoteMemory = match self {
            Self::Nodes { memory, .. } => memory,
            Self::Local(memory) => {
                let written = memory.write(0, &header).map_err(io::Error::from);
                return written.map(|()| SwapInit::Created).map_err(of("cannot write to a swap area"));
            }
        };
        let mut first = [0; PAGE_BYTES];
        memory.read(0, &mut first)?;
        if is_header(&first) {
            return Ok(SwapInit::Existing);
        }
        let slab_bytes = usize::try_from(config.slab_bytes).unwrap_or(usize::MAX);
        for at in (0..config.size_bytes).step_by(slab_bytes).skip(1) {
            memory.write(at, &[0])?;
        }
        memory.write(0, &header)?;
        Ok(SwapInit::Created)
    }

    /// Returns the memory that serves the kernel's requests.
    pub fn memory(&self) -> Arc<dyn Memory> {
        match self {
            Self::Nodes { memory, .. } => Arc::clone(memory) as _,
            Self::Local(memory) => Arc::clone(memory) as _,
        }
    }

    /// Returns the status of nodes and replicas.
    pub fn status(&self) -> SpaceStatus {
        match self {
            Self::Nodes { memory, .. } => memory.status(),
            Self::Local(_) => SpaceStatus::default(),
        }
    }
}

fn open(config: &Config, nic: &Nic, resume_file: Option<File>) -> Result<RemoteMemory, OpenError> {
    let config = ClientConfig {
        name: format!("page {}", std::process::id()),
        nodes: config.nodes.iter().map(ToString::to_string).collect(),
        nodes_max: if config.directory.is_some() { NODES_MAX } else { 0 },
        size_bytes: config.size_bytes,
        replicas: config.replicas.into(),
        slab_bytes: config.slab_bytes,
        // The kernel requests many pages at once. A dedicated thread that keeps polling receives them sooner, if a
        // processor is available.
        caller_polling: false,
        ..ClientConfig::default()
    };
    match resume_file {
        Some(resume_file) => RemoteMemory::resume(nic, config, resume_file),
        None => RemoteMemory::open(nic, config),
    }
}

/// Starts a task that adds nodes which register later.
fn join(config: &Config, memory: &Arc<RemoteMemory>) -> Result<Option<NodeDiscovery>, PagerError> {
    let Some(directory) = &config.directory else { return Ok(None) };
    let parsed = directory.parse::<Directory>().map_err(io::Error::other);
    let discovery = parsed.and_then(|directory| NodeDiscovery::start(directory, memory));
    discovery.map(Some).map_err(of("cannot search for memory nodes"))
}
