"""Hash families, which turn vectors into codes, and hash tables, which find ids by code."""

from slide.hashing.dwta import DWTA as DWTA
from slide.hashing.family import HashFamily as HashFamily
from slide.hashing.simhash import SimHash as SimHash
from slide.hashing.tables import HashTables as HashTables
