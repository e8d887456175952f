//! Takes stock of a lineage's log.

use crate::engine::LogStock;
use crate::home::Home;
use crate::logs::LogName;
use crate::repository::RepositoryResult;

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
    stock.position = log.position()?.map(|position| (position.branch, position.position, position.complete_until));
    Ok(stock)
}
