"""One key, erased wherever its rows are."""
