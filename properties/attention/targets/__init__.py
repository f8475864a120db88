"""Built-in attention targets."""
