//! The table model.

use crate::measure::Spread;

/// What a column holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name in JSON: `snake_case`, unit last.
    pub key: &'static str,
    /// Its heading in text.
    pub heading: &'static str,
    /// Digits after the point in text. JSON carries numbers in full.
    pub decimals: usize,
    /// Whether text shows the range of repeated figures. JSON always carries it.
    pub shows_range: bool,
    /// Where it is shown; JSON always has it.
    pub shown: Shown,
}

impl Column {
    /// A column of whole numbers or of text.
    #[must_use]
    pub const fn new(key: &'static str, heading: &'static str) -> Self {
        Self::with_decimals(key, heading, 0)
    }

    /// A column of numbers with `decimals` digits after the point.
    #[must_use]
    pub const fn with_decimals(key: &'static str, heading: &'static str, decimals: usize) -> Self {
        Self { key, heading, decimals, shows_range: true, shown: Shown::Always }
    }

    /// A column for programs alone: in JSON, not in text.
    #[must_use]
    pub const fn json_only(key: &'static str) -> Self {
        let mut column = Self::new(key, "");
        column.shown = Shown::OnlyInJson;
        column
    }

    /// The same column, shown in wide text alone.
    #[must_use]
    pub const fn wide(mut self) -> Self {
        self.shown = Shown::InWideText;
        self
    }

    /// The same column, its range left out in text.
    #[must_use]
    pub const fn median_only(mut self) -> Self {
        self.shows_range = false;
        self
    }
}

/// Where a column is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// In all text.
    Always,
    /// In text that may be as wide as it needs.
    InWideText,
    /// For programs alone.
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
    /// Nothing to say: not applicable or not measurable here.
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

/// A column, and which figure of a sample it shows; one that is not a number is none.
pub type Figure<S> = (Column, fn(&S) -> f64);

/// Rows of figures under common headings.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// What the rows have in common.
    pub title: String,
    /// Headings.
    pub columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(title: impl Into<String>, columns: Vec<Column>) -> Self {
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When it has another number of cells than the table has columns: a defect of the caller.
    pub fn push(&mut self, row: Vec<Cell>) {
        assert_eq!(row.len(), self.columns.len(), "a row needs one cell for each column");
        self.rows.push(row);
    }

    /// An empty table whose rows begin with `lead` and go on with `figures`.
    pub fn of_figures<S>(title: impl Into<String>, mut lead: Vec<Column>, figures: &[Figure<S>]) -> Self {
        lead.extend(figures.iter().map(|(column, _)| column.clone()));
        Self::new(title, lead)
    }

    /// Adds a row: `lead`, then what `samples` spread over.
    ///
    /// # Panics
    /// As [`Self::push`].
    pub fn push_figures<S>(&mut self, mut lead: Vec<Cell>, figures: &[Figure<S>], samples: &[S]) {
        lead.extend(figures.iter().map(|(_, figure)| Cell::from(Spread::of(samples.iter().map(figure)))));
        self.push(lead);
    }

    /// All rows, in order.
    #[must_use]
    pub fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }
}
