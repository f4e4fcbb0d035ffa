"""Commands that run until they are stopped, and the tokens of servers."""
