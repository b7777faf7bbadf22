//! `farcall page -- CMD`.

use crate::commands::memory::node_list::{NodeList, VALUE_NAME};
use crate::commands::memory::size;
use crate::commands::nic_args::NicArgs;
use crate::failure::{Exit, Failure};
use crate::signals::StopFlag;
use clap::Args;
use farcall_paging::{Config, Obstacle, PagingError, PagingRun, Ready, RunOutcome, preflight};
use std::env;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::Command;

/// Program to run, and memory nodes for its pages.
#[derive(Debug, Args)]
pub struct Run {
    /// Maximum local memory of the program and its children.
    #[arg(long, value_name = "SIZE", value_parser = size::bytes, required = true)]
    resident: Option<u64>,
    /// Addresses of memory nodes (farcall memory serve), separated by commas, or all that are registered in etcd,
    /// including later ones.
    #[arg(long, value_name = VALUE_NAME, value_parser = NodeList::parse, required_unless_present = "bare")]
    nodes: Option<NodeList>,
    /// Store pages in the pager instead of memory nodes, for farcall bench page.
    #[arg(long, hide = true, conflicts_with = "nodes")]
    bare: bool,
    /// Number of nodes that store each page.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    replicas: u8,
    /// Size of the swap area. The nodes grant all of it at the start.
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = size::bytes)]
    size: u64,
    /// Unit in which memory is requested from nodes; at most the size of their slabs.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::bytes)]
    slab: u64,
    /// Start without CAP_SYS_RESOURCE, as in most containers. If the machine is short of memory then, the pager may wait
    /// for memory that only the pager can free: all programs stall until the program is killed.
    #[arg(long)]
    may_stall: bool,
    #[command(flatten)]
    nic: NicArgs,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    /// Runs the program, then removes everything that was set up.
    ///
    /// # Errors
    /// If the program cannot be paged, or not everything was removed.
    pub fn run(self) -> Result<Exit, Failure> {
        let stop = StopFlag::install()?;
        let [program, arguments @ ..] = &self.command[..] else {
            return Err(Failure::new("no program to run").exit(Exit::Usage));
        };
        let config = self.config()?;
        if let Some(obstacles) = combined(&preflight(&config)) {
            return Err(obstacles);
        }
        let paging = PagingRun::start(&config, self.pager()?).map_err(|error| cannot(&error))?;
        print_summary(&paging, &config);
        let mut command = Command::new(program);
        command.args(arguments);
        match paging.run(command, || stop.is_raised()) {
            Ok(RunOutcome::Program(code)) => Ok(Exit::Program(code)),
            Ok(RunOutcome::OutOfMemory { code, killed }) => {
                eprintln!("{}", out_of_memory(&config, killed));
                Ok(Exit::Program(code))
            }
            Ok(RunOutcome::Requested) => Ok(Exit::Interrupted),
            Err(error) => Err(cannot(&error).at(program.display())),
        }
    }

    /// Returns the current nodes, and the directory in which others register.
    fn nodes(&self) -> Result<(Vec<SocketAddr>, Option<String>), Failure> {
        let Some(list) = &self.nodes else { return Ok((Vec::new(), None)) };
        let nodes = list.find(None)?;
        list.check_replicas(&nodes, self.replicas)?;
        Ok((nodes, list.directory().map(ToString::to_string)))
    }

    fn config(&self) -> Result<Config, Failure> {
        let (nodes, directory) = self.nodes()?;
        let page_bytes = farcall::memory::PAGE_BYTES as u64;
        let whole_pages = |bytes: u64| bytes / page_bytes * page_bytes;
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        Ok(Config {
            version: Config::VERSION,
            nodes,
            directory,
            replicas: self.replicas,
            size_bytes: whole_pages(self.size),
            slab_bytes: whole_pages(self.slab),
            // The parser requires the option.
            resident_bytes: self.resident.unwrap_or(0),
            may_stall: self.may_stall,
            program: words.join(" "),
        })
    }

    /// Returns the command of this program as the pager, with the descriptor of the state that the previous pager
    /// stored.
    fn pager(&self) -> Result<impl FnMut(Option<i32>) -> Command + Send + use<>, Failure> {
        let this = env::current_exe()
            .map_err(|error| Failure::because("cannot find the program that serves pages", &error))?;
        let mut options = vec!["--supervisor".to_owned(), std::process::id().to_string()];
        options.extend(self.nic.to_arguments());
        Ok(move |resume_file: Option<i32>| {
            let mut pager = Command::new(&this);
            pager.arg("__pager").args(&options);
            pager.args(resume_file.map(|number| format!("--resume-file={number}")));
            pager
        })
    }
}

/// Prints a summary on standard error, because standard output belongs to the program.
fn print_summary(paging: &PagingRun, config: &Config) {
    let device = paging.swap().map_or_else(String::new, |device| device.display().to_string());
    let (replicas, Ready { slabs, degraded }) = (config.replicas, paging.ready());
    let redundancy = match degraded {
        0 => format!("{replicas} replicas"),
        _ => format!(
            "FEWER than {replicas} replicas of {degraded} of {slabs} slabs, because the nodes have no space for them: the loss \
             of one node loses pages"
        ),
    };
    eprintln!(
        "farcall page: {} resident, {} of swap on {device} at {} memory nodes, {redundancy} (pid {}). Until the program \
         exits, pages of other programs may be swapped there as well.",
        size::text(config.resident_bytes),
        size::text(config.size_bytes),
        config.nodes.len(),
        std::process::id(),
    );
}

/// Returns the message for a program, or a child of it, that was killed for lack of memory.
fn out_of_memory(config: &Config, killed: u64) -> String {
    format!(
        "farcall page: the kernel killed {killed} of the program's processes (SIGKILL) for lack of memory: they used more \
         than {} resident and {} of swap; raise --size or --resident",
        size::text(config.resident_bytes),
        size::text(config.size_bytes),
    )
}

/// Combines all obstacles in one failure.
fn combined(obstacles: &[Obstacle]) -> Option<Failure> {
    if obstacles.is_empty() {
        return None;
    }
    let list = |of: fn(&Obstacle) -> &str| obstacles.iter().map(of).collect::<Vec<_>>().join("; ");
    Some(
        Failure::new("cannot page on this machine; nothing was changed")
            .why(list(|obstacle| &obstacle.what))
            .remedy(list(|obstacle| &obstacle.remedy)),
    )
}

fn cannot(error: &PagingError) -> Failure {
    let failure = Failure::because("cannot page the program", error);
    match error {
        PagingError::Pager(Some(4)) => failure.exit(Exit::Unreachable),
        PagingError::Leftovers(_) => failure.remedy(
            "end the processes that use it, then: farcall page cleanup; do not stop the memory nodes before",
        ),
        PagingError::PagerCrashed => failure.remedy(
            "read its last messages above; store the results of the program in files, and restart it",
        ),
        _ => failure.remedy("find out what is missing: farcall page --help, farcall doctor"),
    }
}
