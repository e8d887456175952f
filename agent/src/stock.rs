//! Takes stock of a lineage's log.

use crate::engine::LogStock;
use crate::home::Home;
use crate::logs::LogName;
use crate::repository::{Damage, RepositoryResult};

/// The note of how far the log reaches, where it must have been lost: tails say that it was made.
///
/// # Errors
/// The store's.
pub fn lost_position(home: &Home, stock: &LogStock) -> RepositoryResult<Option<Damage>> {
    let lineage = &home.lineage.lineage;
    let noted = stock.tails.iter().find(|(_, _, until)| until.is_some());
    match noted {
        Some((file, ..)) if home.system.store().head(&home.system.layout.position(lineage))?.is_none() => {
            let what = format!("it is missing, although the tail of {file} was shipped after it was made");
            Ok(Some(Damage::of(&home.system.layout.position(lineage), what)))
        }
        _ => Ok(None),
    }
}

/// Everything of the log that is stored, by name; tails with their ends.
///
/// # Errors
/// The store's, and damage of a tail or a history.
pub fn stock(home: &Home) -> RepositoryResult<LogStock> {
    let log = home.system.log(&home.lineage.lineage);
    let mut stock = LogStock::default();
    for branch in log.branches()? {
        for (name, _) in log.names(&branch)? {
            let file = LogName { branch: branch.clone(), name };
            if file.name.ends_with(".history") {
                stock.histories.push((file.clone(), log.read(&file)?));
            }
            stock.files.push(file);
        }
    }
    for branch in log.tail_branches()? {
        for name in log.tails(&branch)? {
            let file = LogName { branch: branch.clone(), name };
            if let Some((end, until)) = log.tail_end(&file)? {
                stock.tails.push((file, end, until));
            }
        }
    }
    stock.position = match log.position() {
        Ok(position) => position.map(|position| (position.branch, position.position, position.complete_until)),
        // It only tells of what is stored: nothing that is stored is less usable without. `list` and `verify` name it.
        Err(error) if error.as_damage().is_some() => None,
        Err(error) => return Err(error),
    };
    Ok(stock)
}
