"""Alerts: rules over a job's samples, when each fires, and the same rules for Prometheus."""
