"""The door that speaks PostgreSQL's protocol: tables for psql, drivers and dashboards, read-only."""
