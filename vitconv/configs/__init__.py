"""Configuration files of the libraries: read into facts, and written from them.

`read` finds and reads what stands beside a checkpoint; `kinds` holds the readers and, by dialect, the writers.
"""
