//! `farcall kv load`: loads records from a file.

use super::address::Server;
use super::client::KvClient;
use super::records::Format;
use crate::console::{Console, progress_bar};
use crate::failure::{Exit, Failure};
use crate::signals::StopFlag;
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Number of records sent before their replies are read.
const BATCH: u64 = 256;
/// Maximum number of invalid lines that are described; others are only counted.
const COMPLAINTS_MAX: usize = 10;

/// Load records from a file of tab-separated values, JSON lines or plain lines.
///
/// Reports invalid lines with their numbers and skips them; the exit code is 1 then. A record whose key exists replaces
/// the old value.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall kv load people.tsv\n  farcall kv load events.jsonl --server unix:/run/kv.sock\n  \
                        farcall kv load /usr/share/dict/words --format lines --server rpc:127.0.0.1:11212\n  zcat big.tsv.gz | farcall kv load -"
)]
pub struct Load {
    /// The file, or - for standard input.
    file: PathBuf,
    /// Format of the file [default: JSON lines if its name ends in .jsonl, .ndjson or .json, otherwise TSV].
    #[arg(long)]
    format: Option<Format>,
    #[command(flatten)]
    server: Server,
}

/// Counters of the lines of a file.
#[derive(Debug, Default)]
struct Tally {
    lines: u64,
    stored: u64,
    refused: u64,
    bad: u64,
    bytes: u64,
    complaints: Vec<String>,
}

impl Tally {
    fn complain(&mut self, complaint: String) {
        if self.complaints.len() < COMPLAINTS_MAX {
            self.complaints.push(complaint);
        }
    }
}

impl Load {
    /// Reads the file and stores its records.
    ///
    /// # Errors
    /// If the file cannot be read, or the service cannot be reached or fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let stop = StopFlag::install()?;
        let is_stdin = self.file == Path::new("-");
        let format = self.format.unwrap_or_else(|| Format::of(&self.file));
        let (input, len_bytes): (Box<dyn BufRead>, u64) = if is_stdin {
            (Box::new(BufReader::new(io::stdin())), 0)
        } else {
            let file = File::open(&self.file).map_err(|error| self.cannot_read(&error))?;
            let len_bytes = file.metadata().map_or(0, |meta| meta.len());
            (Box::new(BufReader::with_capacity(1 << 20, file)), len_bytes)
        };
        let mut client = KvClient::connect(&self.server)?;
        let bar = progress_bar(len_bytes, "bytes").with_message("loading");
        let start = Instant::now();
        let tally = self.feed(input, format, &mut client, &bar, &stop)?;
        bar.finish_and_clear();
        self.report(console, &tally, start.elapsed().as_secs_f64(), stop.is_raised())
    }

    fn feed(
        &self,
        mut input: Box<dyn BufRead>,
        format: Format,
        client: &mut KvClient,
        bar: &ProgressBar,
        stop: &StopFlag,
    ) -> Result<Tally, Failure> {
        let (mut tally, mut line, mut queued) = (Tally::default(), Vec::new(), 0);
        while !stop.is_raised() {
            line.clear();
            if input.read_until(b'\n', &mut line).map_err(|error| self.cannot_read(&error))? == 0 {
                break;
            }
            tally.lines += 1;
            tally.bytes += line.len() as u64;
            queued += u64::from(queue(format, line.strip_suffix(b"\n").unwrap_or(&line), client, &mut tally));
            if queued == BATCH {
                finish(client, &mut queued, &mut tally)?;
                bar.set_position(tally.bytes);
            }
        }
        finish(client, &mut queued, &mut tally)?;
        Ok(tally)
    }

    fn report(
        &self,
        console: Console,
        tally: &Tally,
        seconds: f64,
        is_stopped: bool,
    ) -> Result<Exit, Failure> {
        for complaint in &tally.complaints {
            eprintln!("{complaint}");
        }
        let unseen = (tally.bad + tally.refused).saturating_sub(tally.complaints.len() as u64);
        if unseen > 0 {
            eprintln!("… and {unseen} more");
        }
        let rate = tally.stored as f64 / seconds.max(1e-9);
        let text = format!(
            "stored {} records of {} lines in {seconds:.2} s ({rate:.0}/s); {} bad lines, {} refused",
            tally.stored, tally.lines, tally.bad, tally.refused
        );
        let json = json!({ "stored": tally.stored, "lines": tally.lines, "bad_lines": tally.bad, "refused": tally.refused,
            "seconds": seconds, "records_per_second": rate, "complaints": tally.complaints });
        console.print(&text, &json)?;
        Ok(match (is_stopped, tally.bad + tally.refused) {
            (true, _) => Exit::Interrupted,
            (false, 0) => Exit::Success,
            (false, _) => Exit::Failure,
        })
    }

    fn cannot_read(&self, error: &io::Error) -> Failure {
        Failure::because("cannot read the records", error).at(self.file.display())
    }
}

/// Queues the record of a line. Returns whether the line had one.
fn queue(format: Format, line: &[u8], client: &mut KvClient, tally: &mut Tally) -> bool {
    let queued = match format.parse(line) {
        Ok(None) => return false,
        Ok(Some((key, value))) => client.queue_store(&key, &value),
        Err(what) => Err(what),
    };
    if let Err(what) = &queued {
        tally.bad += 1;
        tally.complain(format!("line {}: {what}", tally.lines));
    }
    queued.is_ok()
}

fn finish(client: &mut KvClient, queued: &mut u64, tally: &mut Tally) -> Result<(), Failure> {
    let (stored, refusal) = client.finish_stores(*queued)?;
    tally.stored += stored;
    tally.refused += *queued - stored;
    if let Some(refusal) = refusal {
        tally.complain(format!("among the {queued} records before line {}: {refusal}", tally.lines + 1));
    }
    *queued = 0;
    Ok(())
}
