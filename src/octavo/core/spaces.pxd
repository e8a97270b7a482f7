cimport cython

cpdef object small(Py_ssize_t count)

@cython.final
cdef class Space:
    cdef public int size, per_parent, lanes, rings, beside, live, mixed, fullest
    cdef public int[::1] holders, node, before, after
    cdef public unsigned char[::1] lane
    @cython.locals(ring=int)
    cdef void wait(self, int page) except *
    @cython.locals(ring=int)
    cdef void wait_again(self, int page) except *
    cdef void link(self, int before, int page, int after) except *
    @cython.locals(before=int, after=int)
    cdef void unlink(self, int page) except *
    @cython.locals(ring=int)
    cpdef int coldest(self) except -1
