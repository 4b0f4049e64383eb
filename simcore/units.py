"""Unit constants: the only place with 1024 or 1e9.

Inside the package everything is in SI base units and bytes as float64; files, tables and
JSON carry the unit in the key. GB is 10^9 bytes and GiB is 2^30, never the one for the other.
"""

from __future__ import annotations

KIB = 1024.0
MIB = 1024.0**2
GIB = 1024.0**3
GB = 1e9
TERA = 1e12
MICRO = 1e-6
MILLI = 1e-3
HOUR_S = 3600.0
DAY_S = 86_400.0
