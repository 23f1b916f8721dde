"""Runs commands, reads run folders, tests gates, keeps the ledger. No torch here."""
