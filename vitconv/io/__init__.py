"""Bytes in and out: checkpoint files of any container become named byte ranges, and named byte ranges become files."""
