"""Audits of declared aggregates: each event of the input is accounted for, by a recount from the source."""
