# The C types of arena.py. Nothing is defined here; without Cython this file is not read.
cimport cython

cpdef object view(object array)
cpdef object ints(Py_ssize_t count)
cpdef object longs(Py_ssize_t count)
@cython.locals(i=Py_ssize_t)
cpdef void copy(int[::1] target, Py_ssize_t at, int[::1] source, Py_ssize_t start, Py_ssize_t count) except *
@cython.locals(i=Py_ssize_t)
cpdef void fill(int[::1] target, Py_ssize_t start, Py_ssize_t stop, int number) except *
@cython.locals(i=Py_ssize_t)
cpdef void count_up(int[::1] target, Py_ssize_t at, int first, Py_ssize_t count) except *
@cython.locals(grown="int[::1]")
cpdef object larger(int[::1] array, Py_ssize_t used, Py_ssize_t count)

@cython.final
cdef class Arena:
    cdef public int rows
    cdef public int[::1] data, room
    cdef public long long[::1] begin
    cdef public long long end
    @cython.locals(at="long long")
    cpdef void reserve(self, int row, long long count, long long used) except *
    cpdef void free(self, int row) except *
    cpdef Py_ssize_t spare(self, long long count) except -1
    @cython.locals(grown="int[::1]", begin="long long[::1]", live="long long", end="long long", row=int)
    cpdef void compact(self, long long more) except *
