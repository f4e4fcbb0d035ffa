"""The reads of a table whose rows several servers have: its newest rows, its past, its changes, its stored rows."""
