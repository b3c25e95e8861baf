"""Hash families, what is hashed so that collisions follow inner products, and hash tables."""

from slide.hashing.dwta import DWTA as DWTA
from slide.hashing.family import HashFamily as HashFamily
from slide.hashing.inner_product import InnerProductHash as InnerProductHash
from slide.hashing.simhash import SimHash as SimHash
from slide.hashing.tables import HashTables as HashTables
