cimport cython
from octavo.core.arena cimport Arena, copy
from octavo.core.groups cimport Group
from octavo.core.index cimport PrefixIndex
from octavo.core.pages cimport Pool, Space
from octavo.core.rows cimport Handle, Places, Rows

cdef class Sequences:
    cdef public int size, rows, rollback, spares, touched, chain, boundary, tokens_boundary
    cdef public long long clock
    cdef public bint publishes, states, sliding, crosses
    cdef public PrefixIndex index
    cdef public Pool pool
    cdef public list groups, stops, tags, fetches, guaranteed, pending
    cdef public Arena ids
    cdef public Places places
    cdef public int[::1] known, scheduled, computed, limit, floor, stop, tip, root, shared, prompt
    cdef public int[::1] branch, cross, special, private, promised, preempted, opened, moving
    cdef public int[::1] waiting, spare, path
    cdef public long long[::1] epoch, wants, owed
    cdef public object stored
    cpdef Py_ssize_t read(self, object tokens, Py_ssize_t length) except -1
    @cython.locals(i=Py_ssize_t)
    cdef void write(self, int[::1] target, long long begin, object tokens, Py_ssize_t length) except *
    @cython.locals(i=Py_ssize_t)
    cdef void write_array(self, int[::1] target, long long begin, int[::1] tokens, Py_ssize_t length) except *
    @cython.locals(known=int, begin="long long")
    cpdef void learn(self, int row, object tokens, Py_ssize_t length) except *
    cpdef object tokens(self, int row)
    @cython.locals(group=Group, size=int, node=int, index=PrefixIndex, column=int, tag=int, at="long long")
    cpdef int match(self, long long begin, int most, int root, dict tags) except -1
    @cython.locals(every=bint, tokens=bint, good=bint, group=Group, page=int)
    cdef void serve(self, int node, int column) except *
    @cython.locals(stop=int, column=int, node=int)
    cpdef list hit(self, Group group, int boundary, int root)
    @cython.locals(data="int[::1]", own="long long", i=int)
    cpdef int common(self, int row, long long begin, int length) except -1
    @cython.locals(row=int)
    cpdef int begin(self, long long begin, int length, int limit) except -1
    @cython.locals(start=int, group=Group)
    cpdef void hold(self, int row, int boundary, int root, bint cross) except *
    @cython.locals(index=PrefixIndex, pool=Pool, number=int, stop=int, column=int, page=int)
    cdef void hold_tokens(self, Group group, int row, int boundary) except *
    @cython.locals(column=int, pages=tuple, kept=dict)
    cdef void hold_cross(self, Group group, int row, int root) except *
    @cython.locals(page=int)
    cpdef void fetch(self, int row, Group group, int node) except *
    @cython.locals(number=int, page=int)
    cdef void drop_fetches(self, int row) except *
    @cython.locals(group=Group)
    cdef void let_go(self, int row) except *
    cpdef void preempt(self, int row) except *
    cdef void end(self, int row) except *
    cpdef void bind(self, Handle handle, int row) except *
    @cython.locals(row=int)
    cpdef void release(self, Handle handle) except *
    @cython.locals(place=int, rows=Rows)
    cpdef void leave(self, int row) except *
    cpdef void join(self, Rows rows, int row) except *
    @cython.locals(row=int, last=int, moved=int)
    cpdef void part(self, Rows rows, int place) except *
    @cython.locals(length=int)
    cpdef int columns(self, Group group, int row) except -1
    @cython.locals(most=int, group=Group)
    cdef int width(self, int row) except -1
    @cython.locals(start=int, new=int, group=Group)
    cdef void want(self, int row, int end) except *
    @cython.locals(group=Group, first=int, space=Space, column=int, page=int)
    cdef void lose(self, int row) except *
    @cython.locals(number=int, row=int)
    cdef void owe(self) except *
    @cython.locals(number=int)
    cdef void clear_wants(self) except *
    @cython.locals(number=int)
    cpdef void ask(self) except *
    cdef int span(self, int row, int computed) except -1
    @cython.locals(number=int)
    cpdef int reach(self, int row, int computed) except -1
    @cython.locals(group=Group, first=int)
    cdef int first_lost(self, int row, int computed) except -2
    @cython.locals(span=int, columns=int, node=int)
    cdef int state_boundary(self, int row, int computed) except -1
    @cython.locals(group=Group, page=int)
    cdef bint can_fetch(self, int node) except -1
    @cython.locals(before=int, after=int, tip=int, group=Group, columns=int)
    cdef void settle(self, int row, int reached) except *
    @cython.locals(low=int, high=int, group=Group)
    cdef void cut(self, int row, int end) except *
    cpdef void truncate(self, int row, int length, int reached) except *
    cpdef void stop_at(self, int row, set positions) except *
    @cython.locals(start=int, best=int, stop=int)
    cdef void aim(self, int row) except *
    cdef bint has_room_for_state(self, Group group) except -1
    @cython.locals(space=Space, page=int)
    cdef bint give_up_state(self, Group group) except -1
    @cython.locals(tip=int)
    cdef void keep_state(self, Group group, int row, tuple pages) except *
    @cython.locals(number=int, source=int, target=int)
    cdef void forget_copies(self, Group group, int row) except *
    @cython.locals(length=int, begin="long long", child=int, number=int, page=int, group=Group)
    cpdef int fork(self, int row) except -1
    @cython.locals(columns=int, state=bint, column=int, page=int, target=int)
    cdef void share(self, Group group, int row, int child) except *
    @cython.locals(other=int, origin=int, filled=int)
    cdef void copy_later(self, int number, int source, int target) except *
