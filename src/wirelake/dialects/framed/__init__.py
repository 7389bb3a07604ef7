"""Dialects that a file in TOML describes; one kernel reads and writes all of them."""
