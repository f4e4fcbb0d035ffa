"""Answers as HTTP responses: of a table's reads, of SQL, as streams of events; their forms and errors."""
