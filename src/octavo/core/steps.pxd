cimport cython
from octavo.core.arena cimport copy
from octavo.core.blocks cimport StepBlocks
from octavo.core.groups cimport Group
from octavo.core.rows cimport Handle, Pass, Rows
from octavo.core.sequences cimport Parts
from octavo.core.spaces cimport Space

cdef class Steps(StepBlocks):
    cdef public long long[::1] stamp, new, owed_after
    cdef public int[::1] nothing, given, growing
    cdef public int growers
    cdef public long long tick
    cdef public Rows scratch
    cdef public list open
    @cython.locals(rows=Rows, handle=Handle)
    cpdef Rows select(self, tuple handles)
    cpdef object listed(self, list tokens)
    @cython.locals(tokens="long long", most="long long", pages="long long")
    cpdef void extend(self, Pass step, Rows rows, int count, object counts, long long ahead) except *
    cpdef void preview(self, Rows rows, int count, object counts, long long ahead) except *
    @cython.locals(given="int[::1]", tokens="long long", most="long long", i=int, row=int, start="long long", end="long long")
    cdef tuple aim_rows(self, Rows rows, int count, object counts, long long ahead)
    cdef Py_ssize_t check_end(self, int place, int row, long long start, long long end, long long ahead) except -1
    @cython.locals(over=int)
    cdef void note_growth(self, int place, int row, int start, int end) except *
    @cython.locals(total="long long", number=int, page=int, times=int, space=Space)
    cdef Py_ssize_t count_new(self, Rows rows) except -1
    @cython.locals(total="long long", number=int)
    cdef Py_ssize_t count_pages(self, Rows rows) except -1
    @cython.locals(size=int, new="long long", i=int, row=int, start=int, end=int, group=Group, page=int, shared=dict)
    cdef dict want_rows(self, Rows rows)
    @cython.locals(row=int, number=int)
    cdef void owe_beyond(self) except *
    @cython.locals(size=int, i=int, row=int, used=int, columns=int, group=Group)
    cdef void reserve_columns(self, Rows rows) except *
    @cython.locals(at="long long", number=int)
    cdef void begin_pages(self, Pass step) except *
    @cython.locals(group=Group, column=int)
    cdef void take_columns(self, Pass step, int row, int first, int last) except *
    @cython.locals(number=int, i=int, place=int, row=int, start=int, end=int, first=int, last=int, page=int, times=int, copies=list, given=dict, fetched=list)
    cdef void place_rows(self, Pass step, Rows rows) except *
    @cython.locals(page=int)
    cdef int take(self, Pass step, Group group, int row, int column) except -1
    @cython.locals(group=Group, column=int, at="long long", number=int)
    cdef void place_special(self, Pass step, int place, int row, list copies, dict given, list fetched) except *
    @cython.locals(start=int, page=int, space=Space, times=int)
    cdef void copy_shared_page(self, Pass step, Group group, int row, list copies, dict given) except *
    @cython.locals(column=int, page=int)
    cdef void place_fetched(self, Group group, int row, tuple pages, list copies, list fetched) except *
    @cython.locals(i=int, row=int, end=int)
    cdef void place_snapshots(self, Pass step, Rows rows) except *
    @cython.locals(group=Group, number=int, column=int, part=int, page=int)
    cdef void place_snapshot(self, Pass step, int row, int end) except *
