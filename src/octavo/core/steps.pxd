cimport cython
from octavo.core.arena cimport copy
from octavo.core.groups cimport Group
from octavo.core.index cimport PrefixIndex
from octavo.core.pages cimport Pool, Space
from octavo.core.rows cimport Handle, Pass, Places, Rows
from octavo.core.sequences cimport Sequences

@cython.final
cdef class Core(Sequences):
    cdef public long long[::1] stamp, new, owed_after
    cdef public int[::1] target, nothing, given
    cdef public long long tick
    cdef public Rows scratch
    cdef public int published, dropped
    cdef public list repointed, names
    cdef public object zeros
    cpdef object listed(self, list tokens)
    @cython.locals(rows=Rows, handle=Handle)
    cpdef Rows select(self, tuple handles)
    @cython.locals(tokens="long long", most="long long", pages="long long")
    cpdef void extend(self, Pass step, Rows rows, int count, object counts, long long ahead) except *
    @cython.locals(given="int[::1]", tokens="long long", most="long long", i=int, row=int, start="long long", end="long long")
    cdef tuple aim_rows(self, Rows rows, int count, object counts, long long ahead)
    cdef Py_ssize_t check_end(self, int place, int row, long long start, long long end, long long ahead) except -1
    cpdef void preview(self, Rows rows, int count, object counts, long long ahead) except *
    @cython.locals(total="long long", number=int, page=int, shared=list)
    cdef Py_ssize_t count_new(self, Rows rows) except -1
    @cython.locals(total="long long", number=int)
    cdef Py_ssize_t count_pages(self, Rows rows) except -1
    @cython.locals(size=int, new="long long", i=int, row=int, start=int, end=int, group=Group, page=int)
    cdef list want_rows(self, Rows rows)
    @cython.locals(row=int, number=int)
    cdef void owe_beyond(self) except *
    @cython.locals(size=int, i=int, row=int, used=int, columns=int, group=Group)
    cdef void reserve_columns(self, Rows rows) except *
    @cython.locals(at="long long", number=int, size=int, i=int, row=int, start=int, end=int, first=int, last=int, group=Group, column=int, page=int, source=int)
    cdef void place_rows(self, Pass step, Rows rows) except *
    @cython.locals(page=int)
    cdef int take(self, Pass step, Group group, int row, int column) except -1
    @cython.locals(start=int, group=Group, page=int, column=int, at="long long", number=int)
    cdef void place_special(self, Pass step, int place, int row, list copies, list given, list fetched) except *
    @cython.locals(column=int, page=int)
    cdef void place_fetched(self, Group group, int row, tuple pages, list copies, list fetched) except *
    @cython.locals(i=int, row=int, end=int)
    cdef void place_snapshots(self, Pass step, Rows rows) except *
    @cython.locals(group=Group, number=int, column=int, part=int, page=int)
    cdef void place_snapshot(self, Pass step, int row, int end) except *
    @cython.locals(at="long long", group=Group)
    cpdef Py_ssize_t section(self, int number, long long count, long long tokens) except -1
    cpdef Py_ssize_t block_size(self, long long count, long long tokens) except -1
    @cython.locals(group=Group, at="long long", i=int)
    cdef void begin_crosses(self, Pass step, Rows rows) except *
    @cython.locals(block="int[::1]", n=int, tokens="long long", group=Group, at="long long", i=int, row=int, end=int)
    cdef void fill(self, Pass step, Rows rows) except *
    @cython.locals(block="int[::1]", data="int[::1]", n=int, first="long long", query="long long", ids="long long", positions="long long", at="long long", i=int, j=int, row=int, start=int, end=int, known=int, count=int, there=int, begin="long long", wants=bint)
    cdef void fill_tokens(self, Pass step, Rows rows) except *
    @cython.locals(table="int[::1]", size=int, i=int, row=int, position=int, end=int, begin="long long", column=int, base=int, stop=int)
    cdef void fill_slots(self, Group group, int[::1] block, long long at, Rows rows) except *
    @cython.locals(parts=int, targets="long long", i=int, row=int, column=int, part=int, back=int)
    cdef void fill_states(self, Group group, int[::1] block, long long at, Rows rows) except *
    cpdef bint is_row(self, Pass step, int place) except -1
    @cython.locals(group=Group, n=int, lengths="long long", width=int, i=int)
    cpdef object gather(self, Pass step, int number)
    @cython.locals(data="int[::1]", n=int, i=int, row=int, columns=int, column=int, begin="long long", at="long long")
    cdef void gather_rows(self, int[::1] table, Pass step, Group group, int width, long long lengths) except *
    @cython.locals(log="int[::1]", at=Py_ssize_t)
    cpdef object delta(self, Pass step, int number)
    @cython.locals(columns=int, row=int, column=int)
    cdef void tell_row(self, Pass step, Group group, int place, int width, list found) except *
    @cython.locals(block="int[::1]", numbers="int[::1]", given="int[::1]", valid="int[::1]", n=int, first=int, at="long long", begin="long long", j=int, every=bint, some=bint, i=int, row=int, past=int, context=int, wants=int, count=int, end=int)
    cpdef void commit(self, Pass step, object ids, object counts, object kept) except *
    @cython.locals(block="int[::1]", n=int, first=int, at="long long", j="long long", i=int, row=int, past=int, context=int, count=int, end=int)
    cdef void check_commit(self, Pass step, int[::1] numbers, int[::1] given, int[::1] valid, bint every, bint some, bint partly) except *
    @cython.locals(known="long long")
    cdef void check_row(self, int place, int row, long long count, int past, int end, int context) except *
    @cython.locals(later=bint, before=int, after=int, position=int, group=Group)
    cdef void keep(self, int place, int row, int end, int context) except *
    @cython.locals(index=PrefixIndex, tip=int, tags=dict, begin="long long", column=int, tag=int, at="long long", code=int, node=int, group=Group, page=int, other=int)
    cdef void publish(self, int place, int row, int first, int stop, bint later) except *
    cdef void repoint(self, int place, Group group, int row, int column, int old, int new) except *
    @cython.locals(row=int, number=int, end=int, group=Group)
    cdef void publish_copies(self, Pass step) except *
    cdef void drop_copies(self, Group group, tuple pages) except *
    @cython.locals(fresh="long long", i=int, row=int, root=int)
    cdef void publish_crosses(self, Pass step, Group group) except *
    @cython.locals(block="int[::1]", n=int, first=int, i=int, row=int, past=int, group=Group, number=int)
    cpdef void abort(self, Pass step) except *
    @cython.locals(fresh="long long", i=int, row=int)
    cdef void take_back_crosses(self, Pass step, Group group) except *
