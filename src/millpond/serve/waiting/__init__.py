"""Requests that wait: for a table, a batch, or their turn; and how many of each kind may."""
