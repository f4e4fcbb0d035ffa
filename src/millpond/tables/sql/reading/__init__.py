"""How a statement reads tables: which rows and columns, in which order, and from where."""
