"""Demo traffic: a small town of clients that use all dialects and patterns (`wirelake demo`)."""
