"""Statements that the server answers itself: their words, transactions and settings, cursors, PREPARE, COPY … TO STDOUT."""
