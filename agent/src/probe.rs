//! Probes: named questions to a database, and what their answers must be.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// A question that returns a single value.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// Its name.
    pub name: String,
    /// The database it is asked of.
    pub database: String,
    /// SQL that returns one row with one column, and changes nothing.
    pub query: String,
    /// What the answer must be.
    #[serde(default)]
    pub expect: Expect,
}

/// What an answer must be; all that is given must hold. With nothing given, an answer suffices.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// Exactly this text.
    pub equals: Option<String>,
    /// At least this number.
    pub min: Option<f64>,
    /// At most this number.
    pub max: Option<f64>,
    /// What the source answered when the backup was made.
    #[serde(default)]
    pub matches_source: bool,
}

/// What a database answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeAnswer {
    /// The probe's name.
    pub name: String,
    /// The value, as text; `None` is NULL.
    pub answer: Option<String>,
}

/// What became of a probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeResult {
    /// Its name.
    pub name: String,
    /// What the database answered.
    pub answer: Option<String>,
    /// Whether that is what it must be.
    pub passed: bool,
    /// Why it is not.
    pub reason: Option<String>,
    /// How long the answer took, in milliseconds.
    pub duration_ms: u64,
}

/// Why a file of probes cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// It cannot be read.
    #[error("reading the probes in {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not as it should be.
    #[error("the probes in {} cannot be used: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    probe: Vec<Probe>,
}

/// Reads a TOML file of `[[probe]]` tables.
///
/// # Errors
/// Where it cannot be read or is not as it should be.
pub fn load(path: &Path) -> Result<Vec<Probe>, ProbeError> {
    let text = std::fs::read_to_string(path).map_err(|source| ProbeError::Read { path: path.to_path_buf(), source })?;
    let wrong = |reason: String| ProbeError::Content { path: path.to_path_buf(), reason };
    let File { probe: probes } = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    for (index, probe) in probes.iter().enumerate() {
        if probes[..index].iter().any(|other| other.name == probe.name) {
            return Err(wrong(format!("two probes are named {:?}", probe.name)));
        }
    }
    if probes.is_empty() { Err(wrong("there is no [[probe]] in it".to_owned())) } else { Ok(probes) }
}

/// Asks every probe and judges the answers.
pub fn run(
    probes: &[Probe],
    source: &[ProbeAnswer],
    ask: &mut dyn FnMut(&Probe) -> Result<Option<String>, String>,
) -> Vec<ProbeResult> {
    let one = |probe: &Probe| {
        let clock = Instant::now();
        let answered = ask(probe);
        let duration_ms = clock.elapsed().as_millis() as u64;
        let (answer, reason) = match answered {
            Ok(answer) => {
                let reason = judge(probe, answer.as_deref(), source).err();
                (answer, reason)
            }
            Err(reason) => (None, Some(reason)),
        };
        ProbeResult { name: probe.name.clone(), answer, passed: reason.is_none(), reason, duration_ms }
    };
    probes.iter().map(one).collect()
}

/// Whether an answer is what it must be, or why not.
fn judge(probe: &Probe, answer: Option<&str>, source: &[ProbeAnswer]) -> Result<(), String> {
    let shown = answer.unwrap_or("NULL");
    if let Some(equals) = &probe.expect.equals
        && answer != Some(equals.as_str())
    {
        return Err(format!("it answered {shown}, expected {equals}"));
    }
    let number = || {
        answer
            .and_then(|answer| answer.trim().parse::<f64>().ok())
            .ok_or(format!("it answered {shown}, expected a number"))
    };
    if let Some(min) = probe.expect.min
        && number()? < min
    {
        return Err(format!("it answered {shown}, expected at least {min}"));
    }
    if let Some(max) = probe.expect.max
        && number()? > max
    {
        return Err(format!("it answered {shown}, expected at most {max}"));
    }
    if probe.expect.matches_source {
        let of_source = source.iter().find(|answer| answer.name == probe.name);
        let Some(of_source) = of_source else {
            return Err("the backup holds no answer of the source: give --probes when backing up".to_owned());
        };
        if of_source.answer.as_deref() != answer {
            let expected = of_source.answer.as_deref().unwrap_or("NULL");
            return Err(format!("it answered {shown}, the source answered {expected} when it was backed up"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn probe(expect: Expect) -> Probe {
        Probe { name: "orders".into(), database: "shop".into(), query: "select 1".into(), expect }
    }

    #[rstest]
    #[case(Expect { equals: Some("5".into()), ..Expect::default() }, Some("5"), None)]
    #[case(Expect { equals: Some("5".into()), ..Expect::default() }, Some("6"), Some("it answered 6, expected 5"))]
    #[case(Expect { min: Some(3.0), ..Expect::default() }, Some("2"), Some("it answered 2, expected at least 3"))]
    #[case(Expect { min: Some(3.0), ..Expect::default() }, None, Some("it answered NULL, expected a number"))]
    #[case(Expect { max: Some(3.0), ..Expect::default() }, Some("4"), Some("it answered 4, expected at most 3"))]
    #[case(Expect { matches_source: true, ..Expect::default() }, Some("7"), None)]
    #[case(Expect { matches_source: true, ..Expect::default() }, Some("8"), Some("it answered 8, the source answered 7 when it was backed up"))]
    #[case(Expect::default(), None, None)]
    fn an_answer_is_judged(#[case] expect: Expect, #[case] answer: Option<&str>, #[case] reason: Option<&str>) {
        let source = [ProbeAnswer { name: "orders".into(), answer: Some("7".into()) }];
        let results = run(&[probe(expect)], &source, &mut |_| Ok(answer.map(str::to_owned)));
        assert_eq!(results[0].reason.as_deref(), reason);
        assert_eq!(results[0].passed, reason.is_none());
    }

    #[test]
    fn without_an_answer_of_the_source_nothing_matches_it() {
        let results = run(&[probe(Expect { matches_source: true, ..Expect::default() })], &[], &mut |_| Ok(None));
        assert_eq!(
            results[0].reason.as_deref(),
            Some("the backup holds no answer of the source: give --probes when backing up")
        );
    }
}
