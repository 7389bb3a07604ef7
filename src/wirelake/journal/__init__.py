"""Durable state: the journal's contract, and the journals that implement it."""
