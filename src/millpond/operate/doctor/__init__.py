"""The doctor: what in a job's state and code costs more than it should, each with evidence and a change."""
