//! The table of docs/semantics/memory-nodes.md: the state of a volume after nodes, a witness, workers and mounts have
//! exited. Another package includes this file.

#![allow(dead_code, reason = "each test file uses a part")]

const PAGE: &str = include_str!("../../../../docs/semantics/memory-nodes.md");
const HEAD: &str = "| nodes | witness | replicas | what exits | then |";

/// State of a volume, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Then {
    Available,
    /// Programs wait until nodes are reachable again.
    Waits,
    /// No claim is granted, unless it names a survivor.
    Refused,
    Lost,
}

/// Processes that exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    pub nodes: usize,
    pub witness: bool,
    /// `true` if nodes and witness are out of reach only.
    pub is_out_of_reach: bool,
    pub worker: bool,
    pub mount: bool,
}

impl Exits {
    fn parse(cell: &str) -> Self {
        let (cell, is_out_of_reach) = match cell.strip_suffix(", out of reach only") {
            Some(cell) => (cell, true),
            None => (cell, false),
        };
        let mut exits = Self { is_out_of_reach, ..Self::default() };
        for exit in cell.split(" and ") {
            match exit {
                "the node" | "a node" => exits.nodes = 1,
                "both nodes" | "two nodes" => exits.nodes = 2,
                "the witness" => exits.witness = true,
                "the worker" => exits.worker = true,
                "the mount" => exits.mount = true,
                _ => panic!("{cell}"),
            }
        }
        exits
    }

    /// Returns whether nothing else exits in `other`: a mount includes its worker, and a process that exits is out of
    /// reach.
    pub fn include(&self, other: &Self) -> bool {
        let has_exit = other.nodes > 0 || other.witness;
        other.nodes <= self.nodes
            && other.witness <= self.witness
            && other.mount <= self.mount
            && other.worker <= (self.worker || self.mount)
            && (!has_exit || other.is_out_of_reach || !self.is_out_of_reach)
    }
}

#[derive(Clone, Debug)]
pub struct Row {
    pub text: String,
    pub nodes: usize,
    pub has_witness: bool,
    pub replicas: usize,
    pub exits: Exits,
    pub then: Then,
}

pub fn rows() -> Vec<Row> {
    let lines = PAGE.lines().skip_while(|line| *line != HEAD).skip(2);
    lines.take_while(|line| line.starts_with('|')).map(row).collect()
}

pub fn row(line: &str) -> Row {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [nodes, witness, replicas, exits, then] = cells[..] else { panic!("{line}") };
    Row {
        text: line.to_owned(),
        nodes: nodes.parse().unwrap(),
        has_witness: witness == "yes",
        replicas: replicas.parse().unwrap(),
        exits: Exits::parse(exits),
        then: match then {
            "available" => Then::Available,
            "waits" => Then::Waits,
            "refused" => Then::Refused,
            "lost" => Then::Lost,
            _ => panic!("{line}"),
        },
    }
}
