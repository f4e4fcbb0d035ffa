/* Finds the row of one key in LMDB and writes it: key, lookup, decoding and JSON in one call, without Python's bytecode between.

   LMDB's functions are those that py-lmdb has loaded (`replica/backends/lmdb_functions.py`): two copies of LMDB on one file in a process
   would break its locks.  A reader has a transaction of its own, which each call renews and resets.  The caller of all these functions
   holds Python's lock, so no two calls use the transaction at once.

   A function returns None if Python must answer: after a newer batch or a fork, for a key or a row that isn't plain, for a row that
   isn't there if it may have expired. */

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "lookup_key.h"
#include "row_json.h"

enum { READ_ONLY = 0x20000, NOT_FOUND = -30798 };
enum { ASK_PYTHON = -1, ABSENT = 0, FOUND = 1 };

typedef struct {
    size_t size;
    const void *data;
} Value;

/* LMDB's, see lmdb.h. */
typedef struct {
    void *(*txn_env)(void *txn);
    int (*txn_begin)(void *environment, void *parent, unsigned flags, void **txn);
    int (*txn_renew)(void *txn);
    void (*txn_reset)(void *txn);
    void (*txn_abort)(void *txn);
    size_t (*txn_id)(void *txn);
    int (*dbi_open)(void *txn, const char *name, unsigned flags, unsigned *table);
    int (*get)(void *txn, unsigned table, Value *key, Value *data);
} Lmdb;

/* A replica in this process.
   txn:          reset, except during a call; NULL after the end
   is_busy:      whether a call uses it
   is_over:      whether it ends after that call
   id, until:    the transaction that may be read, and for how long, by the monotonic clock
   frame:        what answers of that transaction have in common
   environment:  py-lmdb's object, which closes LMDB's environment at its end */
typedef struct {
    Lmdb lmdb;
    void *txn;
    size_t id;
    double until;
    PyObject *frame, *environment;
    unsigned forks;
    pid_t process;
    int is_busy, is_over;
} Reader;

/* How to read one table.
   columns:  of its stored rows
   key_kind: KEY_TEXT, or the bytes of a whole number
   lasts:    whether a row that isn't there never was: none expires or lies elsewhere
   names:    of the members, the key's first
   row_type: the class of Python's rows
   alive:    what the pointers point into */
typedef struct {
    PyObject *reader;
    int64_t columns, count, head_size, key_kind, lasts;
    const Member *members;
    const char *head;
    PyObject *names, *row_type, *alive;
    PyObject *cut_name, *stored_name, *evicted_name;
    PyObject *none;
    unsigned table;
} Table;

static const char READER[] = "millpond.reader", TABLE[] = "millpond.table";

static unsigned forks;
static void count_fork(void) { forks++; }

static PyObject *nothing(void) {
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}

/* ------------------------------------------------------------ readers */

static void release(Reader *reader) {
    PyObject *frame = reader->frame, *environment = reader->environment;
    /* After a fork, the transaction's place in the lock file is still the parent's. */
    if (reader->txn && reader->process == getpid()) reader->lmdb.txn_abort(reader->txn);
    reader->txn = 0;
    reader->frame = reader->environment = 0;
    if (frame) Py_DecRef(frame);
    if (environment) Py_DecRef(environment);
}

static void free_reader(PyObject *capsule) {
    Reader *reader = PyCapsule_GetPointer(capsule, READER);
    release(reader);
    free(reader);
}

/* A reader of the environment of a transaction; None if LMDB has no place for it. */
PyObject *new_reader(PyObject *environment, const Lmdb *lmdb, void *txn) {
    static int is_watching;
    if (!is_watching && pthread_atfork(0, 0, count_fork)) return nothing();
    is_watching = 1;
    Reader *reader = calloc(1, sizeof *reader);
    if (!reader) return nothing();
    reader->lmdb = *lmdb;
    if (lmdb->txn_begin(lmdb->txn_env(txn), 0, READ_ONLY, &reader->txn)) {
        free(reader);
        return nothing();
    }
    lmdb->txn_reset(reader->txn);
    reader->forks = forks;
    reader->process = getpid();
    Py_IncRef(reader->environment = environment);
    Py_IncRef(reader->frame = &_Py_NoneStruct);
    return PyCapsule_New(reader, READER, free_reader);
}

/* Let a transaction be read for some time. */
void allow_reader(PyObject *capsule, size_t id, double until, PyObject *frame) {
    Reader *reader = PyCapsule_GetPointer(capsule, READER);
    PyObject *before = reader->frame;
    if (!before || reader->is_over) return;
    reader->id = id;
    reader->until = until;
    Py_IncRef(reader->frame = frame);
    Py_DecRef(before);
}

/* Read no more, and let go of the environment. */
void end_reader(PyObject *capsule) {
    Reader *reader = PyCapsule_GetPointer(capsule, READER);
    reader->is_over = 1;
    if (!reader->is_busy) release(reader);
}

static double now(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static void leave(Reader *reader) {
    reader->lmdb.txn_reset(reader->txn);
    reader->is_busy = 0;
    if (reader->is_over) release(reader);
}

/* Begin to read; 0 if that can't be. */
static int enter(Reader *reader) {
    /* A call may come during another one: Python may collect garbage where objects are made. */
    if (reader->is_over || reader->is_busy || reader->forks != forks || reader->lmdb.txn_renew(reader->txn)) return 0;
    return reader->is_busy = 1;
}

/* Begin to read this transaction; 0 if it is no longer the newest. */
static int begin(Reader *reader, size_t id) {
    if (!enter(reader)) return 0;
    if (reader->lmdb.txn_id(reader->txn) == id) return 1;
    leave(reader);
    return 0;
}

static int begin_allowed(Reader *reader) { return now(CLOCK_MONOTONIC) < reader->until && begin(reader, reader->id); }

/* ------------------------------------------------------------ keys */

/* A key from a text of a URL.  `room` has LONGEST_KEY bytes, and the key may point into it. */
static int key_of_url(const Table *table, Key *key, byte *room, const byte *text, int64_t size, int how) {
    if (size > LONGEST_KEY) return 0;
    if (memchr(text, '%', (size_t)size) || (how & SPACES && memchr(text, '+', (size_t)size))) {
        size = unquoted(room, text, size, how);
        text = room;
    }
    if (table->key_kind == KEY_TEXT) return text_key(key, text, size);
    int64_t value;
    return read_number(text, size, &value) && number_key(key, value, table->key_kind);
}

/* ------------------------------------------------------------ rows */

static int find(const Table *table, const Reader *reader, const Key *key, Stored *row) {
    Value wanted = {(size_t)key->size, key->coded}, found;
    int said = reader->lmdb.get(reader->txn, table->table, &wanted, &found);
    if (said == NOT_FOUND) return table->lasts ? ABSENT : ASK_PYTHON;
    return !said && is_row(row, found.data, (int64_t)found.size, table->columns) ? FOUND : ASK_PYTHON;
}

static void put_row(Out *out, const Table *table, const Key *key, const Stored *row) {
    put(out, table->head, table->head_size);
    if (table->key_kind == KEY_TEXT) put_text(out, key->text, key->text_size);
    else put_number(out, key->number);
    put_members(out, row, table->members, table->count);
}

/* ------------------------------------------------------------ what Python gives */

/* Whether the object is of this very type, not of a subclass. */
static int is_plain(PyObject *object, PyObject *type) {
    PyObject *found = PyObject_Type(object);
    Py_DecRef(found);
    return found == type;
}

static int is_bytes(PyObject *object, const byte **data, int64_t *size) {
    char *at;
    intptr_t length;
    if (PyBytes_AsStringAndSize(object, &at, &length)) {
        PyErr_Clear();
        return 0;
    }
    *data = (const byte *)at;
    *size = length;
    return 1;
}

/* ------------------------------------------------------------ HTTP */

/* (number of the transaction, value in a URL, head, beginning, end, limit) -> head, size, beginning, row and end; None if Python must
   answer, as for `limit` bytes or more.  A number below zero is that of a transaction which may be read as long as it is allowed. */
static PyObject *http(PyObject *self, PyObject *const *given, intptr_t count) {
    Table *table = PyCapsule_GetPointer(self, TABLE);
    Reader *reader = PyCapsule_GetPointer(table->reader, READER);
    const byte *text, *parts[3];
    int64_t text_size, sizes[3];
    if (count != 6 || !is_bytes(given[1], &text, &text_size)) return nothing();
    for (int i = 0; i < 3; i++)
        if (!is_bytes(given[2 + i], &parts[i], &sizes[i])) return nothing();
    int overflow;
    int64_t id = PyLong_AsLongLongAndOverflow(given[0], &overflow);
    int64_t limit = PyLong_AsLongLongAndOverflow(given[5], &overflow);
    Key key;
    Stored row;
    byte decoded[LONGEST_KEY];
    char room[ROOM], length[24];
    Out out = {room, room + ROOM}, digits = {length, length + sizeof length};
    if (!key_of_url(table, &key, decoded, text, text_size, SPACES | PERCENTS)) return nothing();
    if (!(id < 0 ? (size_t)-id == reader->id && begin_allowed(reader) : begin(reader, (size_t)id))) return nothing();
    int is_found = find(table, reader, &key, &row) == FOUND;
    if (is_found) {
        put_row(&out, table, &key, &row);
        put_facts(&out, &row);
    }
    leave(reader);
    if (!is_found || !out.at) return nothing();
    int64_t written = out.at - room, size = sizes[1] + written + sizes[2];
    if (size >= limit) return nothing();
    put_number(&digits, size);
    put(&digits, "\r\n\r\n", 4);
    PyObject *answer = PyBytes_FromStringAndSize(0, sizes[0] + (digits.at - length) + size);
    char *at;
    intptr_t unused;
    if (!answer || PyBytes_AsStringAndSize(answer, &at, &unused)) return answer;
    Out whole = {at, at + unused};
    put(&whole, (const char *)parts[0], sizes[0]);
    put(&whole, length, digits.at - length);
    put(&whole, (const char *)parts[1], sizes[1]);
    put(&whole, room, written);
    put(&whole, (const char *)parts[2], sizes[2]);
    return answer;
}

/* ------------------------------------------------------------ Redis */

/* The number between `at` and the end of a line, and what follows the line; 0 if there isn't one whole. */
static const byte *line_number(const byte *at, const byte *end, int64_t *value) {
    int64_t found = 0, digits = 0;
    for (; at < end && *at >= '0' && *at <= '9' && digits < 4; at++, digits++) found = 10 * found + (*at - '0');
    if (!digits || end - at < 2 || at[0] != '\r' || at[1] != '\n') return 0;
    *value = found;
    return at + 2;
}

/* The key of a GET that has come whole, and what follows the command; 0 if this is none. */
static const byte *get_command(const byte *at, const byte *end, const byte **key, int64_t *size) {
    static const char begin[] = "*2\r\n$3\r\nget\r\n$";
    const int64_t length = sizeof begin - 1;
    if (end - at < length) return 0;
    for (int64_t i = 0; i < length; i++)
        if ((at[i] >= 'A' && at[i] <= 'Z' ? at[i] | 32 : at[i]) != begin[i]) return 0;
    at = line_number(at + length, end, size);
    if (!at || end - at < *size + 2 || at[*size] != '\r' || at[*size + 1] != '\n') return 0;
    *key = at;
    return at + *size + 2;
}

/* (bytes that have come, where to begin, the table's name with a colon, reply for no row) -> (replies, where they end, how many); None
   if Python must open a view first. */
static PyObject *redis(PyObject *self, PyObject *const *given, intptr_t count) {
    static const char null[] = "%NULL";
    Table *table = PyCapsule_GetPointer(self, TABLE);
    Reader *reader = PyCapsule_GetPointer(table->reader, READER);
    const byte *name, *missing;
    int64_t name_size, missing_size;
    if (count != 4 || !is_plain(given[0], &PyByteArray_Type)) return nothing();
    if (!is_bytes(given[2], &name, &name_size) || !is_bytes(given[3], &missing, &missing_size)) return nothing();
    const byte *data = (const byte *)PyByteArray_AsString(given[0]), *end = data + PyByteArray_Size(given[0]);
    int overflow;
    int64_t first = PyLong_AsLongLongAndOverflow(given[1], &overflow), done = 0;
    if (first < 0 || first > end - data || !begin_allowed(reader)) return nothing();
    const byte *at = data + first, *key_at, *after;
    char replies[8 * ROOM], room[ROOM];
    byte decoded[LONGEST_KEY];
    Out out = {replies, replies + sizeof replies};
    int64_t size;
    while ((after = get_command(at, end, &key_at, &size)) && size >= name_size && !memcmp(key_at, name, (size_t)name_size)) {
        Key key;
        Stored row;
        key_at += name_size;
        size -= name_size;
        if (size == sizeof null - 1 && !memcmp(key_at, null, sizeof null - 1)) break;
        if (!key_of_url(table, &key, decoded, key_at, size, PERCENTS)) break;
        int found = find(table, reader, &key, &row);
        if (found == ASK_PYTHON) break;
        Out before = out;
        if (found == ABSENT) {
            put(&out, (const char *)missing, missing_size);
        } else {
            Out json = {room, room + ROOM};
            put_row(&json, table, &key, &row);
            if (!json.at) break;
            put(&out, "$", 1);
            put_number(&out, json.at - room);
            put(&out, "\r\n", 2);
            put(&out, room, json.at - room);
            put(&out, "\r\n", 2);
        }
        if (!out.at) {
            out = before;
            break;
        }
        at = after;
        done++;
    }
    leave(reader);
    PyObject *answer = PyTuple_New(3);
    PyObject *parts[] = {PyBytes_FromStringAndSize(replies, out.at - replies), PyLong_FromLongLong(at - data), PyLong_FromLongLong(done)};
    for (int i = 0; answer && i < 3; i++) PyTuple_SetItem(answer, i, parts[i]);
    return answer;
}

/* ------------------------------------------------------------ Python */

/* A member's value; NULL, perhaps with an error, if Python must compute it. */
static PyObject *value_of(const Member *member, const Stored *row) {
    const byte *slot = row->slots + 8 * member->place;
    int64_t count, begin, size, value;
    if (is_nothing(row, member, &count)) return nothing();
    switch (member->kind) {
    case NUMBER: return PyLong_FromLongLong(number(slot, member->width));
    case BOOLEAN: return PyBool_FromLong(slot[0] != 0);
    case FLOATING: return PyFloat_FromDouble(floating(slot, member->width));
    case AVERAGE: return PyFloat_FromDouble(floating(slot, 8) / (double)count);
    case DISTINCT: return distinct(row, member, &value) ? PyLong_FromLongLong(value) : 0;
    case TEXT: return is_text(row, slot, &begin, &size) ? PyUnicode_DecodeUTF8((const char *)row->bytes + begin, size, 0) : 0;
    }
    return 0;
}

/* Set an item or attribute, and let go of its value. */
static int set(int (*set_)(PyObject *, PyObject *, PyObject *), PyObject *object, PyObject *name, PyObject *value) {
    if (!value) return 0;
    int failed = set_(object, name, value);
    Py_DecRef(value);
    return !failed;
}

/* Python may collect garbage meanwhile, and so run any of its code, but none that ends the transaction. */
static int fill(const Table *table, PyObject *frame, PyObject *made, PyObject *key, const Stored *row) {
    if (PyDict_SetItem(made, PyTuple_GetItem(table->names, 0), key)) return 0;
    for (int64_t i = 0; i < table->count; i++)
        if (!set(PyDict_SetItem, made, PyTuple_GetItem(table->names, 1 + i), value_of(&table->members[i], row))) return 0;
    PyObject *at = PyFloat_FromDouble(now(CLOCK_REALTIME)), *cut = at ? PyTuple_New(2) : 0;
    if (!cut) {
        if (at) Py_DecRef(at);
        return 0;
    }
    Py_IncRef(frame);
    PyTuple_SetItem(cut, 0, frame);
    PyTuple_SetItem(cut, 1, at);
    Py_IncRef(&_Py_FalseStruct);
    return set(PyObject_SetAttr, made, table->cut_name, cut) &&
           set(PyObject_SetAttr, made, table->stored_name, PyBytes_FromStringAndSize((const char *)row->bytes + row->size, STAMP_BYTES)) &&
           set(PyObject_SetAttr, made, table->evicted_name, &_Py_FalseStruct);
}

static int key_of_value(const Table *table, Key *key, PyObject *given) {
    if (table->key_kind == KEY_TEXT) {
        intptr_t size;
        const char *text = is_plain(given, &PyUnicode_Type) ? PyUnicode_AsUTF8AndSize(given, &size) : 0;
        if (text) return text_key(key, (const byte *)text, size);
        PyErr_Clear(); /* surrogates stand for bytes that aren't UTF-8 */
        return 0;
    }
    int overflow;
    if (!is_plain(given, &PyLong_Type)) return 0;
    int64_t value = PyLong_AsLongLongAndOverflow(given, &overflow);
    return !overflow && number_key(key, value, table->key_kind);
}

/* (a key, a dict of it or None, columns) -> the row; None if Python must answer. */
static PyObject *row(PyObject *self, PyObject *const *given, intptr_t count) {
    Table *table = PyCapsule_GetPointer(self, TABLE);
    Reader *reader = PyCapsule_GetPointer(table->reader, READER);
    if (count != 2) return nothing();
    PyObject *wanted = given[0], *columns = given[1];
    if (is_plain(wanted, &PyDict_Type) && !PyDict_Size(columns)) {
        columns = wanted;
        wanted = &_Py_NoneStruct;
    }
    if (wanted == &_Py_NoneStruct)
        wanted = PyDict_Size(columns) == 1 ? PyDict_GetItemWithError(columns, PyTuple_GetItem(table->names, 0)) : 0;
    else if (PyDict_Size(columns))
        wanted = 0;
    Key key;
    Stored found;
    PyObject *made = 0;
    if (wanted && key_of_value(table, &key, wanted) && begin_allowed(reader)) {
        /* As garbage is collected, others may let go of these. */
        PyObject *frame = reader->frame;
        Py_IncRef(frame);
        Py_IncRef(wanted);
        if (find(table, reader, &key, &found) == FOUND) {
            PyObject *(*new_)(PyObject *, PyObject *, PyObject *) = PyType_GetSlot(table->row_type, SLOT_NEW);
            made = new_(table->row_type, table->none, 0);
            if (made && !fill(table, frame, made, wanted, &found)) {
                Py_DecRef(made);
                made = 0;
            }
        }
        leave(reader);
        Py_DecRef(frame);
        Py_DecRef(wanted);
    }
    if (made) return made;
    PyErr_Clear();
    return nothing();
}

/* ------------------------------------------------------------ tables */

static void end_table(PyObject *capsule) {
    Table *table = PyCapsule_GetPointer(capsule, TABLE);
    PyObject *owned[] = {table->reader,   table->names,       table->row_type,     table->alive,
                         table->cut_name, table->stored_name, table->evicted_name, table->none};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) Py_DecRef(owned[i]);
    free(table);
}

/* The functions above for one table, as (http, redis, row); None if the replica has no such table.
   alive:  (names, row_type, names of three attributes of rows, and all that the pointers point into) */
PyObject *new_table(PyObject *reader_, const char *name, const int64_t *facts, const Member *members, const char *head, PyObject *alive) {
    static PyMethodDef methods[] = {
        {"http", http, METH_FASTCALL, 0}, {"redis", redis, METH_FASTCALL, 0}, {"row", row, METH_FASTCALL, 0}};
    Reader *reader = PyCapsule_GetPointer(reader_, READER);
    Table *table = calloc(1, sizeof *table);
    if (!table) return nothing();
    if (!enter(reader)) {
        free(table);
        return nothing();
    }
    int failed = reader->lmdb.dbi_open(reader->txn, name, 0, &table->table);
    leave(reader);
    if (failed) {
        free(table);
        return nothing();
    }
    table->columns = facts[0];
    table->count = facts[1];
    table->head_size = facts[2];
    table->key_kind = facts[3];
    table->lasts = facts[4];
    table->members = members;
    table->head = head;
    table->reader = reader_;
    table->alive = alive;
    PyObject **parts[] = {&table->names, &table->row_type, &table->cut_name, &table->stored_name, &table->evicted_name, &table->none};
    for (intptr_t i = 0; i < (intptr_t)(sizeof parts / sizeof *parts); i++) Py_IncRef(*parts[i] = PyTuple_GetItem(alive, i));
    Py_IncRef(reader_);
    Py_IncRef(alive);
    PyObject *self = PyCapsule_New(table, TABLE, end_table), *functions = self ? PyTuple_New(3) : 0;
    for (intptr_t i = 0; functions && i < 3; i++) PyTuple_SetItem(functions, i, PyCFunction_NewEx(&methods[i], self, 0));
    Py_DecRef(self);
    return functions;
}
