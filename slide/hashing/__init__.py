"""Hash families, which turn vectors into codes, and hash tables, which find ids by code."""

from slide.hashing.families import DWTA as DWTA
from slide.hashing.families import HashFamily as HashFamily
from slide.hashing.families import SimHash as SimHash
from slide.hashing.hash_tables import HashTables as HashTables
