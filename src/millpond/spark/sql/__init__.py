"""The declaration of an aggregate as a SQL statement: read, compared with a pond, started."""
