"""Measures steps on ranks of one machine, joined by links of a given rate (docs/measured.md)."""
