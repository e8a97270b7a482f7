cimport cython

cpdef object small(Py_ssize_t count)

@cython.final
cdef class Lanes:
    cdef public int size, lanes, count
    cdef public int[::1] before, after, waiting
    cdef public unsigned char[::1] lane
    @cython.locals(head=int)
    cdef void join(self, int number, int lane) except *
    @cython.locals(head=int)
    cdef void rejoin(self, int number, int lane) except *
    cdef void put(self, int before, int number, int after, int lane) except *
    @cython.locals(before=int, after=int, lane=int)
    cdef void leave(self, int number) except *
    @cython.locals(head=int)
    cpdef int coldest(self) except -2
    @cython.locals(lane=int, number=int, count=int, down=int)
    cpdef void rebalance(self, object excess) except *
