"""Lookups that a router passes on as they are: below the framework, without threads."""
