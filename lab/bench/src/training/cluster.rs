//! Processes of a training, and requests to the chief.

use super::{Carrier, Model, TrainingError, WORKERS};
use crate::peer::{ChildProcess, free_ports, next_line};
use farcall::stats::read_pid;
use serde_json::{Value, json};
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const SCRIPT: &str = include_str!("training.py");
/// Timeout of a reply: TensorFlow needs seconds to load, and many on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Running processes, which are killed when this is dropped, the chief first.
pub(super) struct Cluster {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    _chief: ChildProcess,
    parameter_server: ChildProcess,
    _workers: Vec<ChildProcess>,
}

impl Cluster {
    pub(super) fn start(python: &str, carrier: Carrier, cores: &[usize]) -> Result<Self, TrainingError> {
        // Ports of the parameter server, the chief and the workers.
        let ports = free_ports::<{ 2 + WORKERS }>()?;
        let start = |role: &'static str, index: &str| {
            let mut command = match carrier {
                Carrier::Tcp => Command::new(python),
                Carrier::FarcallRun => {
                    // This program, which then executes the interpreter.
                    let mut command = Command::new("/proc/self/exe");
                    command.args(["run", "--", python]);
                    command
                }
            };
            command.args(["-c", SCRIPT, index]).args(ports.map(|port| port.to_string()));
            command.stdin(Stdio::null()).stdout(Stdio::null());
            if role == "chief" {
                command.stdin(Stdio::piped()).stdout(Stdio::piped());
            }
            ChildProcess::start(&mut command, cores, &[])
        };
        let mut parameter_server = start("parameter server", "ps")?;
        let mut workers = Vec::new();
        for index in 0..WORKERS {
            workers.push(start("worker", &index.to_string())?);
        }
        wait_until_served("parameter server", &mut parameter_server, ports[0])?;
        for (worker, port) in workers.iter_mut().zip(&ports[2..]) {
            wait_until_served("worker", worker, *port)?;
        }
        let mut chief = start("chief", "chief")?;
        let (Some(orders), Some(answers)) = (chief.0.stdin.take(), chief.0.stdout.take()) else {
            return Err(part("chief", "has no standard streams"));
        };
        let answers = BufReader::new(answers);
        let mut cluster = Self { orders, answers, _chief: chief, parameter_server, _workers: workers };
        cluster.answer("tensorflow")?;
        Ok(cluster)
    }

    /// Returns the losses of the first `steps` steps.
    pub(super) fn losses(&mut self, model: Model, steps: u32) -> Result<Vec<f64>, TrainingError> {
        self.order(&json!({ "model": model.name(), "steps": steps }))?;
        let losses = self.answer("losses")?;
        let losses = losses.as_array().map(|losses| losses.iter().filter_map(Value::as_f64).collect());
        let losses: Vec<f64> = losses.unwrap_or_default();
        if losses.len() == steps as usize { Ok(losses) } else { Err(part("chief", "reported no losses")) }
    }

    pub(super) fn images_per_second(
        &mut self,
        model: Model,
        duration: Duration,
    ) -> Result<f64, TrainingError> {
        self.order(&json!({ "model": model.name(), "seconds": duration.as_secs_f64() }))?;
        let rate = self.answer("images_per_second")?;
        rate.as_f64().ok_or_else(|| part("chief", "reported no rate"))
    }

    /// Returns the bytes that the parameter server has sent and received through shared memory, if its counters can be
    /// read.
    pub(super) fn moved_bytes(&self) -> Option<u64> {
        Some(read_pid(self.parameter_server.0.id()).ok()?.moved_bytes())
    }

    fn order(&mut self, order: &Value) -> Result<(), TrainingError> {
        writeln!(self.orders, "{order}").map_err(|error| part("chief", format!("takes no orders: {error}")))
    }

    /// Returns the value `of` from the chief's next line.
    fn answer(&mut self, of: &str) -> Result<Value, TrainingError> {
        let line = next_line(&mut self.answers, PATIENCE)
            .map_err(|error| part("chief", format!("did not answer: {error}")))?;
        let answer: Option<Value> = serde_json::from_str(&line).ok();
        let value = answer.and_then(|mut answer| answer.get_mut(of).map(Value::take));
        value.ok_or_else(|| part("chief", format!("said {:?} instead of {of}", line.trim())))
    }
}

fn wait_until_served(role: &'static str, child: &mut ChildProcess, port: u16) -> Result<(), TrainingError> {
    let is_serving = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
    child.wait_until_serving(PATIENCE, is_serving).map_err(|why| part(role, why))
}

fn part(role: &'static str, what: impl Into<String>) -> TrainingError {
    TrainingError::Part { role, what: what.into() }
}
