cimport cython
from octavo.core.arena cimport copy
from octavo.core.groups cimport Group
from octavo.core.prefixes cimport SharedPrefixes
from octavo.core.rows cimport Handle, Rows

cdef class Moves(SharedPrefixes):
    cpdef int reach(self, int row, int computed) except -1
    @cython.locals(number=int)
    cdef int end_of_cut(self, int row, int computed) except -1
    @cython.locals(group=Group, first=int)
    cdef int first_lost(self, int row, int computed) except -2
    @cython.locals(span=int, columns=int, node=int)
    cdef int state_boundary(self, int row, int computed) except -1
    @cython.locals(before=int, after=int, shared=int, lost=bint, group=Group, columns=int)
    cdef void settle(self, int row, int reached) except *
    @cython.locals(group=Group)
    cdef void mark_shared(self, int row, int position) except *
    @cython.locals(low=int, high=int, group=Group)
    cdef void cut(self, int row, int end) except *
    @cython.locals(columns=int, group=Group, stop=int)
    cpdef void slide(self, int row, int position) except *
    @cython.locals(count=int, shared=int)
    cpdef void truncate(self, int row, int length, int reached) except *
    @cython.locals(known=int, computed=int, columns=int, group=Group)
    cdef void let_go(self, int row) except *
    cpdef void preempt(self, int row) except *
    cdef void end(self, int row) except *
    @cython.locals(row=int)
    cdef void part_from(self, Handle handle) except *
    @cython.locals(row=int)
    cpdef void release(self, Handle handle) except *
    cpdef void leave(self, int row) except *
    @cython.locals(place=int, rows=Rows)
    cdef void go(self, int row) except *
    @cython.locals(length=int, begin="long long", child=int, node=int, number=int, page=int, group=Group)
    cpdef int fork(self, int row, int left) except -1
    @cython.locals(columns=int, state=bint, column=int, page=int, target=int)
    cdef void share(self, Group group, int row, int child) except *
