//! Curves of a figure: one measurement for each row (a size, or a kind of echo) and column.

use crate::experiments::env::Sampled;
use crate::experiments::subject::{Sample, Subject};
use crate::measure::Spread;
use crate::report::{Cell, Column, Report, Table};
use crate::rnic::{Illegal, Survey};

/// All points of a figure, row by row; every row has the same columns.
pub(crate) struct Grid {
    pub(crate) title: &'static str,
    /// Columns before the points: the length of a message in bytes, or another property that distinguishes the rows.
    pub(crate) lead: Vec<Column>,
    pub(crate) columns: Vec<Column>,
    /// Quantity that the points show.
    pub(crate) figure: fn(&Sample) -> f64,
    pub(crate) rows: Vec<Row>,
}

pub(crate) struct Row {
    pub(crate) lead: Vec<Cell>,
    pub(crate) len_bytes: usize,
    /// Points of the row; `None` if there is no measurement.
    pub(crate) points: Vec<Option<Point>>,
}

pub(super) type Point = Sampled<Subject, Sample>;

impl Row {
    pub(super) fn new<T: Into<Subject>>(
        lead: Vec<Cell>,
        len_bytes: usize,
        tasks: impl IntoIterator<Item = Option<T>>,
    ) -> Self {
        let point = |task: T| Sampled { subject: task.into(), samples: Vec::new() };
        Self { lead, len_bytes, points: tasks.into_iter().map(|task| task.map(point)).collect() }
    }
}

impl Grid {
    /// Drops the points that the device does not support, and adds the reasons to `report`.
    ///
    /// # Errors
    /// Returns an error if a point is not possible on any device.
    pub(super) fn leave_out_what_cannot_be(
        &mut self,
        survey: &Survey,
        report: &mut Report,
    ) -> Result<(), Illegal> {
        for point in self.rows.iter_mut().flat_map(|row| &mut row.points) {
            let checked = match point.as_ref().map(|point| &point.subject) {
                Some(Subject::Verbs(task)) => {
                    task.check()?;
                    task.check_device(&survey.attr, &survey.port.attr)
                }
                Some(Subject::Echo(task)) => {
                    task.check()?;
                    task.check_device(survey)
                }
                Some(Subject::Rival(_)) | None => Ok(()),
            };
            if let Err(refusal) = checked {
                *point = None;
                report.note(format!("Not measured: {refusal}."));
            }
        }
        Ok(())
    }

    /// Returns all points that are to be measured.
    pub(super) fn points(&mut self) -> impl Iterator<Item = &mut Point> {
        self.rows.iter_mut().flat_map(|row| row.points.iter_mut().flatten())
    }

    pub(super) fn table(&self) -> Table {
        let mut table = Table::new(self.title, [&self.lead[..], &self.columns].concat());
        for row in &self.rows {
            let mut cells = row.lead.clone();
            cells.extend((0..row.points.len()).map(|column| Spread::of(self.each(row, column)).into()));
            table.push(cells);
        }
        table
    }

    /// Returns the figure of a point in each repetition.
    fn each<'a>(&'a self, row: &'a Row, column: usize) -> impl Iterator<Item = f64> {
        row.points[column].iter().flat_map(|point| &point.samples).map(self.figure)
    }

    /// Returns the ratio of two points of messages of `len_bytes`, computed within each repetition.
    pub(super) fn ratio(&self, len_bytes: usize, (above, below): (usize, usize)) -> Option<Spread> {
        let row = self.rows.iter().find(|row| row.len_bytes == len_bytes)?;
        Spread::of(self.each(row, above).zip(self.each(row, below)).map(|(above, below)| above / below))
    }
}
