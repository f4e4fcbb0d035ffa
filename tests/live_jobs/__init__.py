"""Live Spark jobs: one that reads files of events, and settings that sessions of tests share."""
