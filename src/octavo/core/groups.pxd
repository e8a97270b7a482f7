cimport cython
from octavo.core.arena cimport Arena
from octavo.core.pages cimport PagePool
from octavo.core.spaces cimport Space
from octavo.core.rows cimport Places

@cython.final
cdef class Group:
    cdef public bint gap, keeps_tokens, keeps_state, keeps_cross
    cdef public int number, window, chunk, sinks, parts, units, size, run, alone, in_flight
    cdef public long long most
    cdef public PagePool pool
    cdef public Places places
    cdef public Arena table
    cdef public int[::1] first
    cdef Space space(self)
    cpdef bint slides(self) except -1
    cpdef int floor(self, long long position) except -1
    cpdef int entry(self, int row, int column) except -1
    cdef void put(self, int row, int column, int page) except *
    @cython.locals(page=int)
    cdef int take(self, int row, int column) except -1
    @cython.locals(begin="long long", column=int, page=int)
    cdef void cut(self, int row, int low, int high) except *
    @cython.locals(page=int)
    cpdef int open_page(self, int row, int position) except -1
    @cython.locals(space=Space)
    cpdef bint is_shared(self, int page) except -1
    @cython.locals(stop=int, start=int, count=int, from_prompt=int, from_branch=int, warm=int, column=int, page=int, marked=bint)
    cdef int slide(self, int row, long long position, int prompt, int branch, int back) except -1
    cdef int unit(self, int length) except -1
    @cython.locals(first=int, column=int, page=int)
    cpdef list held(self, int row, int columns)
