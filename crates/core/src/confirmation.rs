/// What one check of a held lock found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockCheck {
    /// A majority of the nodes confirmed the last extension.
    #[default]
    Confirmed,
    /// Too few nodes confirmed the last extension. The lock is held until its deadline.
    Unconfirmed,
    /// An operator revoked the lock. It is held until its deadline and cannot be extended.
    Revoked,
    /// The nodes say that the lock has ended. Another client may hold it.
    Lost,
}

/// Tracks whether the nodes confirm a lock.
///
/// A lost lock stays lost, and a revoked lock stays revoked until it is lost, whatever later checks
/// find.
#[derive(Clone, Copy, Debug, Default)]
pub struct Confirmation {
    last: LockCheck,
}

impl Confirmation {
    /// Records a check of the lock, and returns the check if it is news.
    pub fn handle_check(&mut self, check: LockCheck) -> Option<LockCheck> {
        use LockCheck::{Confirmed, Lost, Revoked, Unconfirmed};
        let is_news = match self.last {
            Confirmed | Unconfirmed => check != self.last,
            Revoked => check == Lost,
            Lost => false,
        };
        if is_news {
            self.last = check;
        }
        is_news.then_some(check)
    }

    /// Whether a check has found the lock lost.
    pub fn is_lost(self) -> bool {
        self.last == LockCheck::Lost
    }
}

#[cfg(test)]
mod tests {
    use super::LockCheck::{Confirmed, Lost, Revoked, Unconfirmed};
    use super::*;

    fn news(checks: &[LockCheck]) -> Vec<LockCheck> {
        let mut confirmation = Confirmation::default();
        checks.iter().filter_map(|check| confirmation.handle_check(*check)).collect()
    }

    #[test]
    fn change_of_confirmation_is_news_once() {
        assert!(news(&[Confirmed, Confirmed]).is_empty());
        assert_eq!(
            news(&[Unconfirmed, Unconfirmed, Confirmed, Confirmed]),
            [Unconfirmed, Confirmed]
        );
        assert_eq!(
            news(&[Unconfirmed, Confirmed, Unconfirmed]),
            [Unconfirmed, Confirmed, Unconfirmed]
        );
    }

    #[test]
    fn revocation_of_an_unconfirmed_lock_is_news() {
        assert_eq!(news(&[Revoked, Revoked]), [Revoked]);
        assert_eq!(news(&[Unconfirmed, Revoked, Unconfirmed, Lost]), [Unconfirmed, Revoked, Lost]);
        assert_eq!(news(&[Revoked, Unconfirmed, Revoked, Confirmed]), [Revoked]);
    }

    #[test]
    fn lost_lock_stays_lost() {
        assert_eq!(news(&[Lost, Confirmed, Revoked, Lost]), [Lost]);
        let mut confirmation = Confirmation::default();
        assert!(!confirmation.is_lost());
        confirmation.handle_check(Lost);
        confirmation.handle_check(Confirmed);
        assert!(confirmation.is_lost());
    }
}
