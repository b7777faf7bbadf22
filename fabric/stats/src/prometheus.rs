//! Exposition of a process's counters in Prometheus' text format (version 0.0.4).
//!
//! A block whose label consists of words and one number, such as "rpc server thread 0", becomes the series
//! `farcall_rpc_server_thread_…` with the label `number`. Short-lived blocks, those of queue pairs and clients, are
//! only counted: their number of series would be unbounded, and a sum over them would decrease when one ends. `farcall
//! stats PID` reports each of them.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::format::{split_label, words};
use crate::page::Page;
use crate::{BlockReport, Histogram, Report};

/// Names of gauges; all other values only increase.
const LEVELS: [&str; 11] = [
    "items",
    "item_bytes",
    "reserved_bytes",
    "limit_bytes",
    "slots",
    "nodes",
    "nodes_up",
    "slabs_in_use",
    "slabs_degraded",
    "slabs_copying",
    "slabs_lost",
];

/// One metric: its type, its help text, and the lines of its samples.
struct Family {
    kind: &'static str,
    help: String,
    samples: String,
}

impl Family {
    fn new(kind: &'static str, help: String) -> Self {
        Self { kind, help, samples: String::new() }
    }

    fn write(&self, name: &str, text: &mut String) {
        // The format requires one line; it escapes line ends and backslashes.
        let help = self.help.replace('\\', r"\\").replace('\n', r"\n");
        // Writing to a string cannot fail, here and below.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {}\n{}", self.kind, self.samples);
    }
}

/// Returns the live endpoints of a process in Prometheus' text format.
pub fn prometheus(report: &Report) -> String {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for block in report.blocks.iter().filter(|block| block.live) {
        match split_label(&block.label) {
            Some((kind, number)) => describe(block, &kind, number, &mut families),
            None => continue,
        }
    }
    let mut text = String::new();
    let mut build = Family::new("gauge", "Always 1; the version is a label.".to_owned());
    let _ = writeln!(build.samples, "farcall_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    build.write("farcall_build_info", &mut text);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for block in report.blocks.iter().filter(|block| block.live) {
        *counts.entry(words(&block.label).join("_")).or_default() += 1;
    }
    let mut endpoints = Family::new("gauge", "Endpoints of the process now, by their kind.".to_owned());
    for (kind, count) in counts {
        let _ = writeln!(endpoints.samples, "farcall_endpoints{{kind=\"{kind}\"}} {count}");
    }
    endpoints.write("farcall_endpoints", &mut text);
    for (name, family) in families {
        family.write(&name, &mut text);
    }
    text
}

/// Returns the help text of a counter: that of its declaration if the counter belongs to this process.
fn help(kind: &str, counter: &str) -> String {
    match Page::help(kind, counter).map(str::trim).filter(|help| !help.is_empty()) {
        // Remove the markup of rustdoc links and code.
        Some(help) => help.replace(['`', '[', ']'], ""),
        None => format!("{} of each {}.", counter.replace('_', " "), kind.replace('_', " ")),
    }
}

fn describe(block: &BlockReport, kind: &str, number: u32, families: &mut BTreeMap<String, Family>) {
    if let Some(histogram) = Histogram::of(&block.counters) {
        let name = format!("farcall_{kind}_seconds");
        let help = || format!("Time that each {} took, in seconds.", kind.replace('_', " "));
        let family = families.entry(name.clone()).or_insert_with(|| Family::new("histogram", help()));
        let mut seen = 0_u64;
        for (limit_ns, count) in &histogram.buckets {
            seen = seen.wrapping_add(*count);
            let limit = limit_ns.map_or_else(|| "+Inf".to_owned(), |ns| (ns as f64 / 1e9).to_string());
            let _ = writeln!(family.samples, "{name}_bucket{{number=\"{number}\",le=\"{limit}\"}} {seen}");
        }
        let sum = histogram.sum_ns as f64 / 1e9;
        let _ = writeln!(family.samples, "{name}_sum{{number=\"{number}\"}} {sum}");
        let _ = writeln!(family.samples, "{name}_count{{number=\"{number}\"}} {seen}");
        return;
    }
    for (counter, value) in &block.counters {
        let is_level = LEVELS.contains(&counter.as_str());
        let (kind_of_metric, end) = if is_level { ("gauge", "") } else { ("counter", "_total") };
        // Names such as `items_total` have the suffix already.
        let stem = counter.strip_suffix("_total").map_or(counter.as_str(), |stem| match stem {
            "items" => "items_stored",
            stem => stem,
        });
        let name = format!("farcall_{kind}_{stem}{end}");
        let family =
            families.entry(name.clone()).or_insert_with(|| Family::new(kind_of_metric, help(kind, counter)));
        let _ = writeln!(family.samples, "{name}{{number=\"{number}\"}} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(label: &str, counters: &[(&str, u64)]) -> BlockReport {
        let counters = counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        BlockReport { label: label.to_owned(), live: true, counters, records: Vec::new() }
    }

    #[test]
    fn endpoints_that_stay_become_series_and_others_are_counted() {
        let ended = BlockReport { live: false, ..block("rpc server thread 9", &[("calls", 1)]) };
        let blocks = vec![
            block("rpc server thread 0", &[("calls", 7), ("reads", 0)]),
            block("rpc server thread 1", &[("calls", 8)]),
            block("kv partition 0", &[("items", 3), ("items_total", 5)]),
            block("softnic qp 0x0012af", &[("sends", 1)]),
            block("softnic qp 0x0012b0", &[("sends", 1)]),
            block("rpc client", &[("calls", 1)]),
            block("rpc handler 0", &[("le_128", 2), ("le_256", 1), ("le_inf", 1), ("sum_ns", 5_000)]),
            ended,
        ];
        let text = prometheus(&Report { pid: 1, alive: true, command: "x".into(), blocks });
        let expected = [
            "farcall_endpoints{kind=\"kv_partition\"} 1",
            "farcall_endpoints{kind=\"rpc_client\"} 1",
            "farcall_endpoints{kind=\"rpc_handler\"} 1",
            "farcall_endpoints{kind=\"rpc_server_thread\"} 2",
            "farcall_endpoints{kind=\"softnic_qp\"} 2",
            "# TYPE farcall_kv_partition_items gauge",
            "farcall_kv_partition_items{number=\"0\"} 3",
            "# TYPE farcall_kv_partition_items_stored_total counter",
            "farcall_kv_partition_items_stored_total{number=\"0\"} 5",
            "# TYPE farcall_rpc_handler_seconds histogram",
            "farcall_rpc_handler_seconds_bucket{number=\"0\",le=\"0.000000128\"} 2",
            "farcall_rpc_handler_seconds_bucket{number=\"0\",le=\"0.000000256\"} 3",
            "farcall_rpc_handler_seconds_bucket{number=\"0\",le=\"+Inf\"} 4",
            "farcall_rpc_handler_seconds_sum{number=\"0\"} 0.000005",
            "farcall_rpc_handler_seconds_count{number=\"0\"} 4",
            "# TYPE farcall_rpc_server_thread_calls_total counter",
            "farcall_rpc_server_thread_calls_total{number=\"0\"} 7",
            "farcall_rpc_server_thread_calls_total{number=\"1\"} 8",
            "# TYPE farcall_rpc_server_thread_reads_total counter",
            "farcall_rpc_server_thread_reads_total{number=\"0\"} 0",
        ];
        let is_help = |line: &&str| line.starts_with("# HELP ");
        let lines: Vec<&str> = text.lines().filter(|line| !is_help(line)).skip(3).collect();
        assert_eq!(lines, expected);
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(rest) = line.strip_prefix("# TYPE ") else { continue };
            let name = rest.split(' ').next().unwrap();
            assert!(lines[at - 1].starts_with(&format!("# HELP {name} ")), "{line} behind {}", lines[at - 1]);
        }
        assert_eq!(lines.iter().filter(|line| is_help(line)).count(), text.matches("# TYPE ").count());
    }

    crate::counters! {
        /// Counters of a test.
        struct Described {
            /// Apples that
            /// [`fell`].
            apples,
        }
    }

    #[test]
    fn takes_help_from_the_declaration_of_a_counter() {
        let _block = crate::Block::<Described>::new("orchard of tests 7", 0);
        let text = prometheus(&crate::read_pid(std::process::id()).unwrap());
        assert!(text.contains("# HELP farcall_orchard_of_tests_apples_total Apples that fell.\n"), "{text}");
    }
}
