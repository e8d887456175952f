//! The log, on stderr: what the agent does, never what it was told in confidence.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, filter::Targets, fmt};

use super::options::LogLevel;
use super::output::Format;

/// Begins to log. Libraries are held to warnings: what they tell below that can hold requests with their credentials.
pub(super) fn begin(level: LogLevel, format: Format) {
    let level = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let targets = Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("holdfast_agent", level);
    let layer = fmt::layer().with_writer(std::io::stderr).with_target(false);
    let layer = match format {
        Format::Text => layer.with_ansi(false).boxed(),
        Format::Json => layer.json().boxed(),
    };
    // A second start in one process (tests) keeps the first one's log.
    let _ = tracing_subscriber::registry().with(layer.with_filter(targets)).try_init();
}
