"""Checkpoint the task, not the conversation."""
