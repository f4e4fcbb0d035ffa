"""The rules: of code, queries, sizes, values and bounds; `rules.py` lists them all."""
