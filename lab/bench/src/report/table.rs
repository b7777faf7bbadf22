//! The table model.

use crate::measure::{PairedRatio, Spread};

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name in JSON: `snake_case`, unit last.
    pub key: &'static str,
    /// Heading in text.
    pub heading: &'static str,
    /// Number of decimals in text. JSON contains exact numbers.
    pub decimals: usize,
    /// `true` if text shows the range of repeated figures. JSON always contains it.
    pub shows_range: bool,
    /// Outputs that show the column; JSON always contains it.
    pub shown: Shown,
}

impl Column {
    /// Creates a column of whole numbers or text.
    pub const fn new(key: &'static str, heading: &'static str) -> Self {
        Self::with_decimals(key, heading, 0)
    }

    /// Creates a column of numbers with `decimals` decimals.
    pub const fn with_decimals(key: &'static str, heading: &'static str, decimals: usize) -> Self {
        Self { key, heading, decimals, shows_range: true, shown: Shown::Always }
    }

    /// Creates a column of numbers with `decimals` decimals, without their range in text.
    pub const fn median(key: &'static str, heading: &'static str, decimals: usize) -> Self {
        Self::with_decimals(key, heading, decimals).median_only()
    }

    /// Creates a column that is only contained in JSON.
    pub const fn json_only(key: &'static str) -> Self {
        let mut column = Self::new(key, "");
        column.shown = Shown::OnlyInJson;
        column
    }

    /// Returns the column, shown in wide text only.
    #[must_use]
    pub const fn wide(mut self) -> Self {
        self.shown = Shown::InWideText;
        self
    }

    /// Returns the column without its range in text.
    #[must_use]
    pub const fn median_only(mut self) -> Self {
        self.shows_range = false;
        self
    }
}

/// Outputs that show a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// In all text.
    Always,
    /// In text without a limit of width.
    InWideText,
    /// In JSON only.
    OnlyInJson,
}

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// A name.
    Text(String),
    /// A number measured or counted once.
    Number(f64),
    /// A number measured several times.
    Spread(Spread),
    /// Not applicable, or not measurable here.
    None,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        if number.is_finite() { Self::Number(number) } else { Self::None }
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::Number(number as f64)
    }
}

impl From<Spread> for Cell {
    fn from(spread: Spread) -> Self {
        Self::Spread(spread)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

/// A column, and the figure of a sample that it shows; NaN becomes an empty cell.
pub type Figure<S> = (Column, fn(&S) -> f64);

/// Rows of figures under common headings.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Title of the table.
    pub title: String,
    /// Columns.
    pub columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Creates an empty table.
    pub fn new(title: impl Into<String>, columns: Vec<Column>) -> Self {
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// Panics if the number of cells is not that of the columns.
    pub fn push(&mut self, row: Vec<Cell>) {
        assert_eq!(row.len(), self.columns.len(), "a row needs one cell for each column");
        self.rows.push(row);
    }

    /// Creates an empty table whose columns are `lead` followed by those of `figures`.
    pub fn of_figures<S>(title: impl Into<String>, mut lead: Vec<Column>, figures: &[Figure<S>]) -> Self {
        lead.extend(figures.iter().map(|(column, _)| column.clone()));
        Self::new(title, lead)
    }

    /// Adds a row: `lead`, then the spread of each figure over `samples`.
    ///
    /// # Panics
    /// Those of [`Self::push`].
    pub fn push_figures<S>(&mut self, mut lead: Vec<Cell>, figures: &[Figure<S>], samples: &[S]) {
        lead.extend(figures.iter().map(|(_, figure)| Cell::from(Spread::of(samples.iter().map(figure)))));
        self.push(lead);
    }

    /// Creates a table with one row for each of `rows`, which are the arguments of [`Self::push_figures`].
    pub fn of_samples<'a, S: 'a>(
        title: impl Into<String>,
        lead: Vec<Column>,
        figures: &[Figure<S>],
        rows: impl IntoIterator<Item = (Vec<Cell>, &'a [S])>,
    ) -> Self {
        let mut table = Self::of_figures(title, lead, figures);
        rows.into_iter().for_each(|(lead, samples)| table.push_figures(lead, figures, samples));
        table
    }

    /// Creates an empty table of ratios: columns `lead`, then the median ratio below `heading`, the bounds of the true
    /// median and their confidence.
    pub fn of_ratios(title: impl Into<String>, mut lead: Vec<Column>, heading: &'static str) -> Self {
        lead.extend([
            Column::with_decimals("ratio", heading, 2),
            Column::with_decimals("low", "low", 2),
            Column::with_decimals("high", "high", 2),
            Column::with_decimals("confidence_percent", "% sure", 1),
        ]);
        Self::new(title, lead)
    }

    /// Adds a row to a table of ratios: `lead`, then the ratio of `ours` to `theirs`, computed within each repetition.
    /// Without a finite ratio there is no row.
    ///
    /// # Panics
    /// Those of [`Self::push`].
    pub fn push_ratio<S>(&mut self, mut lead: Vec<Cell>, ours: &[S], theirs: &[S], figure: fn(&S) -> f64) {
        if let Some(ratio) = PairedRatio::of(ours.iter().map(figure).zip(theirs.iter().map(figure))) {
            lead.extend([ratio.median, ratio.low, ratio.high, ratio.confidence_percent].map(Cell::from));
            self.push(lead);
        }
    }

    /// Returns all rows in order.
    pub fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }
}
