"""What each command does: load, call, render, exit status."""
