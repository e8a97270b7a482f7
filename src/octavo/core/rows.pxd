cimport cython

cdef class Handle:
    cdef object __weakref__
    cdef readonly object core
    cdef readonly int row
    cdef readonly tuple last
    cdef readonly object left

@cython.final
cdef class Rows:
    cdef readonly int[::1] data, log, tally, wide
    cdef readonly int count, logged
    cdef readonly long long steps
    cpdef void note(self, int place, int group, int column, int page) except *
    cpdef void note_all(self, int place, int width) except *
    cdef bint widen(self, int place, int width) except -1
    @cython.locals(at=Py_ssize_t)
    cdef void append(self, int place, int group, int column, int page) except *
    @cython.locals(at=Py_ssize_t)
    cpdef object take_log(self)

@cython.final
cdef class Places:
    cdef public list rows
    cdef public int[::1] place
    cpdef void put(self, int row, Rows rows, int place) except *
    cpdef void drop(self, int row) except *
    @cython.locals(rows=Rows)
    cpdef void note(self, int row, int group, int column, int page) except *

cdef class Pass:
    cdef object __weakref__
    cdef readonly object core, array, ids, log
    cdef readonly Rows rows
    cdef int[::1] block  # not for Python: a step by hand has none, and to read none is no error in C
    cdef readonly int count, width
    cdef readonly long long tokens, clock, turn
    cdef readonly bint is_open
    cdef readonly list before, behind, kept
