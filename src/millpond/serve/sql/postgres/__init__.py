"""PostgreSQL's side of statements, in their processes: types, forms of values, and the catalogue that clients ask."""
