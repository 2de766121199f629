"""Who does which pictures of a run, in a sqlite file that several processes and machines share."""

from attacks.runtime.ledger.claims import DIED, Claim, Counts, Failure, Ledger

__all__ = ["DIED", "Claim", "Counts", "Failure", "Ledger"]
