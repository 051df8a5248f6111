"""Decoded columns on disk: the bytes of one, the folder of all, and what scans do with them."""
