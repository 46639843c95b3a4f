"""The cache on disk: which folder is trusted, what is kept there, and how it is checked."""

from braze.cache.private import PRIVATE
from braze.cache.sealed import write_all
from braze.cache.store import Cache, cache_of

private_folder = PRIVATE.get

__all__ = ["Cache", "cache_of", "private_folder", "write_all"]
