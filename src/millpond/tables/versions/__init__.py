"""Versions of declared aggregates: what a name means to readers, how two differ, cut-over, retirement."""
