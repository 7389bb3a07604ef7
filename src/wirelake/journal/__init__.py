"""What must survive: the journal's contract, and the journals that keep it."""
