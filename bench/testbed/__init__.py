"""Measures training steps on ranks that a rate-limited network joins, on one machine (docs/measured.md)."""
