"""The blocks level: bookkeeping alone. Nothing here imports torch."""
