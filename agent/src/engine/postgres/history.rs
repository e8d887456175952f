//! Timeline history files: which timelines a timeline descends from, and where it left each of them.
//!
//! A file `0000000A.history` holds a line for every ancestor, oldest first: the ancestor's number, the position at
//! which its child left it, and the reason (PostgreSQL documentation, "Timelines"; `timeline.c` in the server).

use super::lsn::{Lsn, Timeline};

/// One line of a history file: an ancestor and where its child left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// The ancestor.
    pub timeline: Timeline,
    /// Where the next timeline begins: the ancestor's log counts before this position only.
    pub switch: Lsn,
    /// What PostgreSQL noted about the reason.
    pub reason: String,
}

/// The history of one timeline, itself included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    timeline: Timeline,
    ancestors: Vec<Ancestor>,
}

/// A stretch of the log on one timeline of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The timeline.
    pub timeline: Timeline,
    /// Where it begins: the position at which it left its parent, or zero.
    pub begin: Lsn,
    /// Where the next timeline left it; `None` for the newest, which is open.
    pub end: Option<Lsn>,
}

/// Why a text is no history file of the timeline it should belong to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// Not text at all.
    #[error("the history of timeline {timeline} is damaged: it is not text")]
    NotText {
        /// Whose history it should be.
        timeline: Timeline,
    },
    /// A line that does not say a timeline and a position.
    #[error(
        "the history of timeline {timeline} is damaged: line {line} ({text:?}) is not a timeline and a log position"
    )]
    Line {
        /// Whose history it should be.
        timeline: Timeline,
        /// The line, counted from 1.
        line: usize,
        /// What it says.
        text: String,
    },
    /// Ancestors must be ever newer, and older than the timeline itself.
    #[error("the history of timeline {timeline} is damaged: line {line} names timeline {found}, which is out of order")]
    Order {
        /// Whose history it should be.
        timeline: Timeline,
        /// The line, counted from 1.
        line: usize,
        /// The ancestor it names.
        found: Timeline,
    },
}

impl History {
    /// The history of a timeline that has no history file: the first of a cluster.
    pub fn first(timeline: Timeline) -> Self {
        Self { timeline, ancestors: Vec::new() }
    }

    /// Reads the content of `timeline`'s history file. Empty lines and lines that begin with `#` are comments.
    ///
    /// # Errors
    /// If the content is damaged; the error names the line.
    pub fn parse(timeline: Timeline, content: &[u8]) -> Result<Self, HistoryError> {
        let text = std::str::from_utf8(content).map_err(|_| HistoryError::NotText { timeline })?;
        let mut ancestors: Vec<Ancestor> = Vec::new();
        for (index, text) in text.lines().enumerate() {
            let line = index + 1;
            let trimmed = text.trim();
            if trimmed.is_empty() || trimmed.starts_with('#') {
                continue;
            }
            let ancestor =
                parse_line(trimmed).ok_or_else(|| HistoryError::Line { timeline, line, text: text.to_owned() })?;
            let newest = ancestors.last().map(|a| a.timeline);
            if newest >= Some(ancestor.timeline) || ancestor.timeline >= timeline {
                return Err(HistoryError::Order { timeline, line, found: ancestor.timeline });
            }
            ancestors.push(ancestor);
        }
        Ok(Self { timeline, ancestors })
    }

    /// Whose history this is.
    pub fn timeline(&self) -> Timeline {
        self.timeline
    }

    /// The ancestors, oldest first, without the timeline itself.
    pub fn ancestry(&self) -> &[Ancestor] {
        &self.ancestors
    }

    /// The stretches of log that make up this history, oldest first, the timeline's own as the last.
    pub fn stretches(&self) -> Vec<Stretch> {
        let mut begin = Lsn(0);
        let mut stretches = Vec::with_capacity(self.ancestors.len() + 1);
        for ancestor in &self.ancestors {
            stretches.push(Stretch { timeline: ancestor.timeline, begin, end: Some(ancestor.switch) });
            begin = ancestor.switch;
        }
        stretches.push(Stretch { timeline: self.timeline, begin, end: None });
        stretches
    }

    /// Where `timeline` was left by its child in this history; `None` for the newest and for strangers.
    pub fn fork_point(&self, timeline: Timeline) -> Option<Lsn> {
        self.ancestors.iter().find(|a| a.timeline == timeline).map(|a| a.switch)
    }

    /// The parent and the position at which this timeline left it; `None` for a first timeline.
    pub fn parent(&self) -> Option<(Timeline, Lsn)> {
        self.ancestors.last().map(|a| (a.timeline, a.switch))
    }

    /// Whether what `timeline` says up to `lsn` is part of this history: the timeline is the newest or an ancestor,
    /// and was not left before that position. A backup that ends at `lsn` on `timeline` can be recovered along this
    /// history exactly if this is true.
    pub fn contains(&self, timeline: Timeline, lsn: Lsn) -> bool {
        timeline == self.timeline || self.fork_point(timeline).is_some_and(|switch| lsn <= switch)
    }

    /// The timeline on which the record at `lsn` stands in this history.
    pub fn timeline_of(&self, lsn: Lsn) -> Timeline {
        self.ancestors.iter().find(|a| lsn < a.switch).map_or(self.timeline, |a| a.timeline)
    }
}

fn parse_line(line: &str) -> Option<Ancestor> {
    let mut words = line.splitn(3, char::is_whitespace);
    let timeline = words.next()?.parse().ok()?;
    let switch = words.next()?.parse().ok()?;
    let reason = words.next().unwrap_or_default().trim().to_owned();
    Some(Ancestor { timeline, switch, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    // As written by PostgreSQL 15 after two promotions, with its empty line.
    const THIRD: &[u8] = b"1\t0/3000148\tno recovery target specified\n\n2\t0/5000000\tbefore 2000-01-01 00:00:00+00\n";

    fn third() -> History {
        History::parse(Timeline(3), THIRD).unwrap()
    }

    #[test]
    fn every_ancestor_is_read_with_its_reason() {
        let ancestor = |timeline, switch, reason: &str| Ancestor {
            timeline: Timeline(timeline),
            switch: Lsn(switch),
            reason: reason.into(),
        };
        assert_eq!(
            third().ancestry(),
            [
                ancestor(1, 0x300_0148, "no recovery target specified"),
                ancestor(2, 0x500_0000, "before 2000-01-01 00:00:00+00")
            ]
        );
        assert_eq!(third().parent(), Some((Timeline(2), Lsn(0x500_0000))));
        assert_eq!(third().fork_point(Timeline(1)), Some(Lsn(0x300_0148)));
        assert_eq!(third().fork_point(Timeline(3)), None);
    }

    #[test]
    fn an_ancestor_counts_only_up_to_where_it_was_left() {
        assert!(third().contains(Timeline(1), Lsn(0x300_0148)));
        assert!(!third().contains(Timeline(1), Lsn(0x300_0149)));
        assert!(third().contains(Timeline(2), Lsn(0x4FF_FFFF)));
        assert!(third().contains(Timeline(3), Lsn(u64::MAX)));
        assert!(!third().contains(Timeline(4), Lsn(1)));
    }

    #[test]
    fn a_position_stands_on_the_timeline_that_wrote_it() {
        assert_eq!(third().timeline_of(Lsn(0x300_0147)), Timeline(1));
        assert_eq!(third().timeline_of(Lsn(0x300_0148)), Timeline(2));
        assert_eq!(third().timeline_of(Lsn(0x500_0000)), Timeline(3));
    }

    #[test]
    fn the_stretches_follow_each_other_without_a_gap() {
        let stretch = |timeline, begin, end: Option<u64>| Stretch {
            timeline: Timeline(timeline),
            begin: Lsn(begin),
            end: end.map(Lsn),
        };
        let expected =
            [stretch(1, 0, Some(0x300_0148)), stretch(2, 0x300_0148, Some(0x500_0000)), stretch(3, 0x500_0000, None)];
        assert_eq!(third().stretches(), expected);
        assert_eq!(History::first(Timeline(1)).stretches(), [stretch(1, 0, None)]);
    }

    #[rstest::rstest]
    #[case(b"1\n", "line 1 (\"1\") is not a timeline and a log position")]
    #[case(b"# comment\n\nx\t0/1\n", "line 3 (\"x\\t0/1\") is not a timeline and a log position")]
    #[case(b"2\t0/1\n1\t0/2\n", "line 2 names timeline 1, which is out of order")]
    #[case(b"3\t0/1\n", "line 1 names timeline 3, which is out of order")]
    #[case(b"\xFF", "it is not text")]
    fn damage_is_named(#[case] content: &[u8], #[case] reason: &str) {
        let error = History::parse(Timeline(3), content).unwrap_err().to_string();
        assert_eq!(error, format!("the history of timeline 3 is damaged: {reason}"));
    }
}
