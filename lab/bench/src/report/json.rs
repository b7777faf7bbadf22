//! Reports as JSON: exact numbers, spreads with their range, stable names.

use super::Report;
use super::table::{Cell, Table};
use serde_json::{Map, Value, json};

pub(super) fn report(report: &Report) -> Value {
    json!({
        "title": report.title,
        "conditions": report.conditions.iter().map(|(name, value)| (name.replace(' ', "_"), value.into())).collect::<Map<String, Value>>(),
        "tables": report.tables.iter().map(table).collect::<Vec<_>>(),
        "warnings": report.warnings,
        "notes": report.notes,
        "problems": report.problems,
        "sound": report.is_sound(),
    })
}

fn table(table: &Table) -> Value {
    let row = |row: &Vec<Cell>| -> Value {
        table
            .columns
            .iter()
            .zip(row)
            .map(|(column, value)| (column.key.to_owned(), cell(value)))
            .collect::<Map<String, Value>>()
            .into()
    };
    json!({ "title": table.title, "rows": table.rows().iter().map(row).collect::<Vec<_>>() })
}

fn cell(cell: &Cell) -> Value {
    match cell {
        Cell::Text(text) => text.as_str().into(),
        Cell::Number(number) => number_value(*number),
        Cell::Spread(spread) => json!({
            "median": number_value(spread.median),
            "min": number_value(spread.min),
            "max": number_value(spread.max),
            "repetitions": spread.repetitions,
            "disturbed": spread.is_disturbed(),
        }),
        Cell::None => Value::Null,
    }
}

/// Returns whole numbers as JSON integers, so that counters are printed without a decimal point.
fn number_value(number: f64) -> Value {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() < EXACT_MAX { (number as i64).into() } else { number.into() }
}

#[cfg(test)]
mod tests {
    use super::super::{Column, Conditions};
    use super::*;
    use crate::measure::Spread;

    #[test]
    fn rows_are_objects_by_column_key() {
        let mut conditions = Conditions::default();
        conditions.push("client core", "1");
        let mut report = Report::new("t", conditions);
        let mut table =
            Table::new("x", vec![Column::new("name", "n"), Column::new("ops", "o"), Column::new("us", "u")]);
        table.push(vec!["a".into(), 12u64.into(), Spread::of([1.5]).into()]);
        table.push(vec!["b".into(), Cell::None, f64::NAN.into()]);
        report.tables.push(table);
        report.warn("the machine is busy");
        report.warn("the machine is busy");
        let value = report.to_json();
        assert_eq!(value["warnings"], json!(["the machine is busy"]));
        assert_eq!(value["conditions"]["client_core"], "1");
        assert_eq!(value["sound"], true);
        let rows = &value["tables"][0]["rows"];
        assert_eq!(
            rows[0],
            json!({"name": "a", "ops": 12, "us": {"median": 1.5, "min": 1.5, "max": 1.5, "repetitions": 1, "disturbed": false}})
        );
        assert_eq!(rows[1], json!({"name": "b", "ops": null, "us": null}));
    }
}
