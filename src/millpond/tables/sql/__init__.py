"""SQL over the tables of a pond, by DuckDB."""
