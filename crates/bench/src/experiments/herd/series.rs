//! A figure's curves: for each row (a size, or a kind of echo) one measurement for each column.

use super::super::stage::{Progress, Stage};
use crate::measure::Spread;
use crate::rnic::echo::{self, EchoResult, EchoTask};
use crate::rnic::{self, Illegal, RnicError, RnicResult, RnicTask, Survey};
use farcall_providers::Chosen;

/// One point of a curve and what was measured for it.
#[derive(Debug)]
pub(super) enum Point {
    Verbs(RnicTask, Vec<RnicResult>),
    Echo(EchoTask, Vec<EchoResult>),
    /// Nothing to measure.
    None,
}

/// All points of a figure, row by row; every row has the same columns.
#[derive(Debug)]
pub(super) struct Grid {
    pub(super) rows: Vec<Row>,
}

#[derive(Debug)]
pub(super) struct Row {
    pub(super) len_bytes: usize,
    pub(super) points: Vec<Point>,
}

impl From<RnicTask> for Point {
    fn from(task: RnicTask) -> Self {
        Self::Verbs(task, Vec::new())
    }
}

impl From<EchoTask> for Point {
    fn from(task: EchoTask) -> Self {
        Self::Echo(task, Vec::new())
    }
}

impl Point {
    fn title(&self) -> Option<String> {
        match self {
            Self::Verbs(task, _) => Some(format!("{task}, {} B", task.len_bytes)),
            Self::Echo(task, _) => Some(format!("{task}, {} B", task.len_bytes)),
            Self::None => None,
        }
    }

    fn check(&self, survey: &Survey) -> Result<Result<(), Illegal>, Illegal> {
        match self {
            Self::Verbs(task, _) => {
                task.check()?;
                Ok(task.check_device(&survey.attr, &survey.port.attr))
            }
            Self::Echo(task, _) => {
                task.check()?;
                Ok(task.check_device(survey))
            }
            Self::None => Ok(Ok(())),
        }
    }

    /// Takes one measurement; returns a note if it could not be had.
    fn measure(&mut self, chosen: &Chosen, stage: &Stage) -> Result<Option<String>, RnicError> {
        let measured = match self {
            Self::Verbs(task, results) => {
                rnic::measure(chosen, *task, &stage.baseline_plan()).map(|result| results.push(result))
            }
            Self::Echo(task, results) => {
                echo::measure(chosen, *task, &stage.baseline_plan()).map(|result| results.push(result))
            }
            Self::None => Ok(()),
        };
        match measured {
            Ok(()) => Ok(None),
            Err(error @ RnicError::NotInOrder) => {
                Ok(Some(format!("Echoes by WRITE were not measured: {error}.")))
            }
            // Lost without a trace, as unreliable transports may.
            Err(error @ (RnicError::Silence(_) | RnicError::Bytes(_))) => {
                Ok(self.title().map(|title| format!("{title}: {error}.")))
            }
            Err(error) => Err(error),
        }
    }

    /// Operations or echoes a second, in millions.
    pub(super) fn mops(&self) -> Option<Spread> {
        match self {
            Self::Verbs(_, results) => {
                Spread::of(results.iter().map(|result| result.messages_per_second / 1e6))
            }
            Self::Echo(_, results) => Spread::of(results.iter().map(|result| result.echoes_per_second / 1e6)),
            Self::None => None,
        }
    }

    /// Mean latency in microseconds: one way of a ping-pong, or until the completion.
    pub(super) fn mean_us(&self) -> Option<Spread> {
        let Self::Verbs(_, results) = self else { return None };
        Spread::of(results.iter().filter_map(|result| result.one_way_us(|summary| summary.mean_ns)))
    }
}

impl Grid {
    /// Drops the points that the device cannot do, and says why.
    pub(super) fn leave_out_what_cannot_be(&mut self, survey: &Survey) -> Result<Vec<String>, Illegal> {
        let mut notes = Vec::new();
        for point in self.rows.iter_mut().flat_map(|row| &mut row.points) {
            if let Err(refusal) = point.check(survey)? {
                *point = Point::None;
                notes.push(format!("Not measured: {refusal}."));
            }
        }
        Ok(notes)
    }

    /// Takes one measurement of each point; returns notes, or nothing if it was interrupted.
    pub(super) fn measure(
        &mut self,
        chosen: &Chosen,
        stage: &Stage,
        progress: Progress<'_>,
    ) -> Result<Option<Vec<String>>, RnicError> {
        let mut notes = Vec::new();
        for point in self.rows.iter_mut().flat_map(|row| &mut row.points) {
            let Some(title) = point.title() else { continue };
            if !progress(&title) {
                return Ok(None);
            }
            notes.extend(point.measure(chosen, stage)?);
        }
        Ok(Some(notes))
    }

    /// The row of messages of `len_bytes`.
    pub(super) fn row_of(&self, len_bytes: usize) -> Option<&Row> {
        self.rows.iter().find(|row| row.len_bytes == len_bytes)
    }
}
