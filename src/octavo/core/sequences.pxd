cimport cython
from octavo.core.arena cimport Arena, copy
from octavo.core.groups cimport Group
from octavo.core.index cimport PrefixIndex
from octavo.core.pages cimport PagePool
from octavo.core.rows cimport Handle, Places, Rows
from octavo.core.spaces cimport Space

@cython.final
cdef class Parts:
    cdef public int size, rows, rollback
    cdef public bint publishes
    cdef public PrefixIndex index
    cdef public PagePool pool
    cdef public list groups, names
    cdef public Arena ids
    cdef public Places places

cdef class Sequences:
    cdef public int size, rows, rollback, spares, touched, main
    cdef public long long clock
    cdef public bint publishes, states, sliding, crosses
    cdef public PrefixIndex index
    cdef public PagePool pool
    cdef public list groups, names, stops, tags, fetches, guaranteed
    cdef public dict pending
    cdef public Arena ids
    cdef public Places places
    cdef public int[::1] known, scheduled, computed, limit, floor, stop, tip, front, root, shared, prompt
    cdef public int[::1] branch, cross, special, private, promised, forked, preempted, opened, moving
    cdef public int[::1] waiting, spare
    cdef public long long[::1] epoch, wants, owed
    cdef public object stored
    cpdef Py_ssize_t read(self, object tokens, Py_ssize_t length) except -1
    cdef void write(self, int[::1] target, long long begin, object tokens, Py_ssize_t length) except *
    @cython.locals(i=Py_ssize_t, number="long long")
    cdef void write_list(self, int[::1] target, long long begin, list tokens, Py_ssize_t length) except *
    @cython.locals(i=Py_ssize_t, signs=int)
    cdef void write_array(self, int[::1] target, long long begin, int[::1] tokens, Py_ssize_t length) except *
    cpdef object tokens(self, int row)
    cdef object copy_ids(self, int row)
    @cython.locals(row=int)
    cpdef int begin(self, long long begin, int length, int limit) except -1
    cdef int span(self, int row, int positions) except -1
    @cython.locals(place=int)
    cpdef void disband(self, Rows rows) except *
    cpdef int columns(self, Group group, int row) except -1
    @cython.locals(length=int)
    cdef int width_in(self, Group group, int row) except -1
    @cython.locals(most=int, group=Group)
    cdef int width(self, int row) except -1
    cpdef void bind(self, Handle handle, int row) except *
    cpdef void join(self, Rows rows, int row) except *
    @cython.locals(row=int, last=int, moved=int)
    cpdef void part(self, Rows rows, int place) except *
    @cython.locals(start=int, new=int, group=Group)
    cdef void want(self, int row, int end) except *
    @cython.locals(group=Group, first=int, space=Space, column=int, page=int)
    cdef void lose(self, int row) except *
    @cython.locals(number=int, row=int)
    cdef void owe(self) except *
    @cython.locals(number=int)
    cdef void clear_wants(self) except *
    cpdef void question(self) except *
    @cython.locals(number=int)
    cdef void ask(self) except *
