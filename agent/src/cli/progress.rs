//! Shows how far long work has come: bytes, rate and time to go, where somebody is watching.

use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::{Format, is_watched};
use crate::progress::Progress;

/// How often it is drawn anew.
const PERIOD: Duration = Duration::from_millis(100);
/// While the end is known, and while it is not.
const KNOWN: &str = "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} to go";
const UNKNOWN: &str = "{msg} {spinner} {binary_bytes}, {binary_bytes_per_sec}, {elapsed} so far";

/// Does `work`, and shows its progress on stderr if that is a terminal and the output is text.
pub(super) fn shown<T>(format: Format, label: &'static str, work: impl FnOnce(&Progress) -> T) -> T {
    let progress = &Progress::default();
    if format == Format::Json || !is_watched() {
        return work(progress);
    }
    thread::scope(|scope| {
        let (working, ended) = bounded::<()>(0);
        scope.spawn(move || draw(label, progress, &ended));
        let outcome = work(progress);
        drop(working);
        outcome
    })
}

/// Draws until the other end of `ended` is dropped, which a panic of the work does too; then leaves no trace.
fn draw(label: &'static str, progress: &Progress, ended: &Receiver<()>) {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style(false));
    bar.set_message(label);
    let mut known = false;
    while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        let total = progress.total();
        if (total > 0) != known {
            known = total > 0;
            bar.set_style(style(known));
        }
        if known {
            // The work may turn out to be more than it seemed at first.
            bar.set_length(total.max(progress.done()));
        }
        bar.set_position(progress.done());
        bar.tick();
    }
    bar.finish_and_clear();
}

fn style(known: bool) -> ProgressStyle {
    let template = if known { KNOWN } else { UNKNOWN };
    // A test holds that both templates are right.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_right() {
        for template in [KNOWN, UNKNOWN] {
            ProgressStyle::with_template(template).unwrap();
        }
    }

    #[test]
    fn the_work_is_done_and_its_outcome_given_back() {
        let outcome = shown(Format::Json, "working", |progress| {
            progress.expect(2);
            progress.advance(2);
            progress.done()
        });
        assert_eq!(outcome, 2);
    }
}
