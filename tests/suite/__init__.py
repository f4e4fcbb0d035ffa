"""The suite itself: which tests are small, and a report of each run."""
