"""The broker by HTTP: health, metrics, administration, publishing, events, and the log as Arrow."""
