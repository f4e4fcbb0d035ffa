"""The door that speaks Redis' protocol: tables as hashes of a read-only replica."""
