"""Helpers that any room may use; they import nothing of slide but one another."""
