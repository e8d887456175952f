//! What is printed: text for people, or exactly one JSON document.

use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};

use clap::ValueEnum;
use comfy_table::{Cell, CellAlignment, Table, TableStyle};
use serde::Serialize;
use serde_json::json;

use super::exit::Failure;

/// How results and errors are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people
    #[default]
    Text,
    /// One JSON document on stdout; errors as one line of JSON on stderr
    Json,
}

/// Prints a finished report: what `text` makes of it, or the report itself as JSON.
///
/// # Errors
/// Where stdout does not take it. A reader that has gone away has seen enough: that is no error.
pub(super) fn report<T: Serialize>(format: Format, report: &T, text: impl FnOnce() -> String) -> Result<(), Failure> {
    match format {
        Format::Text => print_text(&text()),
        Format::Json => print_json(report),
    }
}

/// Prints text for people.
///
/// # Errors
/// As [`report`].
pub(super) fn print_text(text: &str) -> Result<(), Failure> {
    print(&printable(text))
}

/// Prints the one document.
///
/// # Errors
/// As [`report`].
pub(super) fn print_json<T: Serialize>(report: &T) -> Result<(), Failure> {
    let document = serde_json::to_string_pretty(report).map_err(|error| Failure::undone(&error))?;
    print(&format!("{document}\n"))
}

/// Prints one of many documents, on a line of its own.
///
/// # Errors
/// As [`report`].
pub(super) fn print_json_line<T: Serialize>(report: &T) -> Result<(), Failure> {
    let document = serde_json::to_string(report).map_err(|error| Failure::undone(&error))?;
    print(&format!("{document}\n"))
}

/// Prints text as it is.
///
/// # Errors
/// As [`report`].
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::because(format!("it was done, but what it found could not be written to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Tells why there is no result.
pub(super) fn complain(format: Format, failure: &Failure) {
    let text = match format {
        Format::Text => printable(&format!("error: {}\n", failure.message)),
        Format::Json => format!("{}\n", json!({ "error": failure.message, "exit_code": failure.code })),
    };
    // With stderr gone there is nobody to tell.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether somebody is watching stderr.
pub(super) fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Text in which nothing steers a terminal: names of files and words of servers are not ours.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{FFFD}' } else { c }).collect()
}

/// A short report: a title, labelled facts, notes, and what to do next.
#[derive(Debug, Default)]
pub(super) struct Block {
    title: String,
    facts: Vec<(String, String)>,
    bad: Vec<String>,
    notes: Vec<String>,
    next: Option<String>,
}

impl Block {
    pub(super) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// A fact with its label.
    pub(super) fn fact(mut self, label: impl Into<String>, value: impl fmt::Display) -> Self {
        self.facts.push((label.into(), value.to_string()));
        self
    }

    /// A fact, where there is one.
    pub(super) fn maybe(self, label: impl Into<String>, value: Option<impl fmt::Display>) -> Self {
        match value {
            Some(value) => self.fact(label, value),
            None => self,
        }
    }

    /// Facts.
    pub(super) fn facts(mut self, facts: impl IntoIterator<Item = (String, String)>) -> Self {
        self.facts.extend(facts);
        self
    }

    /// What is wrong with the data; all of it, as each is something to look after.
    pub(super) fn bad(mut self, lines: impl IntoIterator<Item = impl fmt::Display>) -> Self {
        self.bad.extend(lines.into_iter().map(|line| line.to_string()));
        self
    }

    /// What is worth knowing.
    pub(super) fn notes(mut self, notes: &[String]) -> Self {
        self.notes.extend_from_slice(notes);
        self
    }

    /// What to do next.
    pub(super) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let width = self.facts.iter().map(|(label, _)| label.len()).max().unwrap_or_default();
        for (label, value) in &self.facts {
            writeln!(f, "  {label:width$}  {value}")?;
        }
        for line in &self.bad {
            writeln!(f, "bad: {line}")?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        match &self.next {
            Some(next) => writeln!(f, "next: {next}"),
            None => Ok(()),
        }
    }
}

/// A table without lines; columns whose title begins with `>` hold numbers and are aligned to the right.
pub(super) fn table(titles: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    table.set_header(titles.iter().map(|title| title.trim_start_matches('>')));
    table.add_rows(rows.into_iter().map(|row| row.into_iter().map(Cell::new).collect::<Vec<_>>()));
    for (title, column) in titles.iter().zip(table.column_iter_mut()) {
        column.set_padding((0, 2));
        if title.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().fold(String::new(), |mut text, line| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", line.trim_end());
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_lines_its_facts_up() {
        let block = Block::new("backup 1").fact("new", "1 B").fact("database", 7).maybe("took", None::<&str>);
        let block = block.bad(["base/5/1 page 7"]).notes(&["slow".to_owned()]).next("verify");
        assert_eq!(
            block.to_string(),
            "backup 1\n  new       1 B\n  database  7\nbad: base/5/1 page 7\nnote: slow\nnext: verify\n"
        );
    }

    #[test]
    fn a_table_has_no_lines_and_numbers_end_below_each_other() {
        let rows =
            [vec!["a".to_owned(), "1 B".to_owned(), "x".to_owned()], vec!["bcd".into(), "100 B".into(), "-".into()]];
        assert_eq!(table(&["id", ">new", "state"], rows), "id     new  state\na      1 B  x\nbcd  100 B  -\n");
    }

    #[test]
    fn nothing_that_is_printed_steers_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\u{FFFD}[2Jb\n");
    }
}
