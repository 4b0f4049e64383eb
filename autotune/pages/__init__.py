"""One self-contained HTML page for a prediction or a search."""
