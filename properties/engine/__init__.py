"""Schedulers with their block manager and batch preparation, under test: the referee plays the model."""
