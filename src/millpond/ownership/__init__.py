"""Who may write a checkpoint, and how a finished copy takes its place."""
