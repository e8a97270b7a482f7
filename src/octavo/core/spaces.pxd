cimport cython
from octavo.core.eviction cimport Lanes

@cython.final
cdef class Space:
    cdef public int size, per_parent, rings, live, mixed, fullest
    cdef public int[::1] holders, node, below
    cdef public unsigned char[::1] lane
    cdef public Lanes beside
