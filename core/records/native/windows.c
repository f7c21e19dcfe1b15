/* How many records there are by window of their timestamps, without an object for each: in a batch, apart by their
 * headers (what the audit's broker tier counts), and in columns (what its consumer tier does). And such columns of lists. */
#include "native.h"

#include <stdlib.h>

/* The offsets [from, to), and the length of a window in ms. */
typedef struct {
    int64_t from, to, window;
} Wanted;

static Run *another(Runs *runs) {
    if (runs->used == runs->room) {
        int64_t room = runs->room ? 2 * runs->room : 8;
        Run *grown = realloc(runs->items, sizeof(Run) * (size_t)room);
        if (grown == NULL) {
            runs->no_memory = 1;
            return NULL;
        }
        runs->items = grown;
        runs->room = room;
    }
    return &runs->items[runs->used++];
}

static int in_window(const Run *run, int64_t timestamp, int64_t window) {
    if (run->window == NO_WINDOW || timestamp < 0)
        return run->window == NO_WINDOW && timestamp < 0;
    return timestamp >= run->window && timestamp - run->window < window;
}

static int64_t window_of(int64_t timestamp, int64_t window) {
    return timestamp < 0 ? NO_WINDOW : timestamp - timestamp % window;
}

int count_in_window(Runs *runs, int64_t timestamp, int64_t bytes, int64_t window) {
    Run *run = runs->used ? &runs->items[runs->used - 1] : NULL;
    if (run == NULL || !in_window(run, timestamp, window)) {
        run = another(runs);
        if (run == NULL)
            return -1;
        *run = (Run){window_of(timestamp, window), 0, 0, 0, 0};
    }
    run->records++;
    run->bytes = (int64_t)((uint64_t)run->bytes + (uint64_t)bytes);
    return 0;
}

PyObject *list_of_windows(const Runs *runs) {
    PyObject *list = PyList_New((Py_ssize_t)runs->used);
    for (int64_t i = 0; list != NULL && i < runs->used; i++) {
        const Run *run = &runs->items[i];
        PyObject *item = Py_BuildValue("(LLL)", (long long)run->window, (long long)run->records, (long long)run->bytes);
        if (item == NULL || PyList_SetItem(list, (Py_ssize_t)i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* A varint of one byte or two at p, of which three bytes can be read; NULL for a longer one. */
static inline const uint8_t *short_varint(const uint8_t *p, int64_t *value) {
    uint32_t raw = p[0];
    if (raw < 0x80) {
        p++;
    } else if (p[1] < 0x80) {
        raw = (raw & 0x7F) | (uint32_t)p[1] << 7;
        p += 2;
    } else {
        return NULL;
    }
    *value = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
    return p;
}

/* Moves the cursor over an ordinary record of the run: short varints, no headers, the next offset, the same window. 0
 * if the record is not one, or is wrong: next_record has to read it. It reads at most FRONT bytes in front of the key, and
 * TAIL around the value. */
#define FRONT 16
#define TAIL 4
static inline int skip_ordinary(const Area *area, RecordCursor *cursor, int64_t window, Run *run) {
    const uint8_t *p = area->data + cursor->pos, *end, *data_end = area->data + area->size;
    int64_t length, delta, offset, key, value;
    if (data_end - p < FRONT || (p = short_varint(p, &length)) == NULL || length > data_end - p || length < 6)
        return 0;
    end = p + length;
    if ((p = short_varint(p + 1, &delta)) == NULL || (p = short_varint(p, &offset)) == NULL ||
        offset != cursor->previous + 1 || offset > area->last_delta || (p = short_varint(p, &key)) == NULL || key < -1)
        return 0;
    int64_t timestamp = area->fixed ? area->base_timestamp : area->base_timestamp + delta;
    if (!in_window(run, timestamp, window) || run->headers_size)
        return 0;
    p += key > 0 ? key : 0;
    if (end - p < TAIL && (end - p < 2 || p[0] >= 0x80)) /* a value of one byte's length, and the number of headers */
        return 0;
    if ((p = short_varint(p, &value)) == NULL || value < -1)
        return 0;
    p += value > 0 ? value : 0;
    if (p != end - 1 || *p)
        return 0;
    run->records++;
    run->bytes += (key > 0 ? key : 0) + (value > 0 ? value : 0);
    cursor->previous = offset;
    cursor->pos = end - area->data;
    cursor->index++;
    return 1;
}

static int count_all(const Area *area, Wanted wanted, Runs *runs, Fault *fault) {
    RecordCursor cursor = RECORD_CURSOR_START;
    Record record;
    Run *run = NULL;
    /* All offsets of the batch are wanted, and no timestamp can be longer than 64 bits. */
    int ordinary = area->last_delta >= 0 && area->base_offset >= 0 && area->base_offset <= INT64_MAX - area->last_delta &&
                   wanted.from <= area->base_offset && area->base_offset + area->last_delta < wanted.to &&
                   area->base_timestamp >= 0 && area->base_timestamp < INT64_MAX / 2;
    while (cursor.index < area->count) {
        if (ordinary && run != NULL && skip_ordinary(area, &cursor, wanted.window, run))
            continue;
        if (next_record(area, &cursor, &record, fault))
            return -1;
        if (record.offset < wanted.from || record.offset >= wanted.to)
            continue;
        int64_t size = cursor.pos - record.headers;
        if (run == NULL || !in_window(run, record.timestamp, wanted.window) || size != run->headers_size ||
            memcmp(area->data + record.headers, area->data + run->headers, (size_t)size)) {
            run = another(runs);
            if (run == NULL)
                return -1;
            *run = (Run){window_of(record.timestamp, wanted.window), 0, 0, record.headers, size};
        }
        run->records++;
        run->bytes += (record.key_size > 0 ? record.key_size : 0) + (record.value_size > 0 ? record.value_size : 0);
    }
    return end_of_records(area, &cursor, fault);
}

static PyObject *list_of(const Area *area, const Runs *runs) {
    PyObject *list = PyList_New((Py_ssize_t)runs->used);
    for (int64_t i = 0; list != NULL && i < runs->used; i++) {
        const Run *run = &runs->items[i];
        PyObject *item = Py_BuildValue("(LLLy#)", (long long)run->window, (long long)run->records,
                                       (long long)run->bytes, (const char *)area->data + run->headers,
                                       (Py_ssize_t)run->headers_size);
        if (item == NULL || PyList_SetItem(list, (Py_ssize_t)i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

PyObject *native_window_counts(PyObject *module, PyObject *args) {
    Py_buffer data;
    long long count, base_offset, last_delta, base_timestamp, from, to, window;
    int fixed;
    if (!PyArg_ParseTuple(args, "y*LLLLpLLL", &data, &count, &base_offset, &last_delta, &base_timestamp, &fixed, &from,
                          &to, &window))
        return NULL;
    PyObject *result = NULL;
    Runs runs = {NULL, 0, 0, 0};
    if (window <= 0) {
        PyErr_Format(PyExc_ValueError, "a window of %lld ms", window);
    } else {
        Area area = {data.buf, data.len, count, base_offset, last_delta, base_timestamp, fixed};
        Fault fault = {""};
        int wrong;
        Py_BEGIN_ALLOW_THREADS
        wrong = count_all(&area, (Wanted){from, to, window}, &runs, &fault);
        Py_END_ALLOW_THREADS
        if (runs.no_memory)
            PyErr_NoMemory();
        else if (wrong)
            raise_corrupt(module, fault.text);
        else
            result = list_of(&area, &runs);
    }
    free(runs.items);
    PyBuffer_Release(&data);
    return result;
}

static int64_t item_at(const uint8_t *column, int64_t index) {
    int64_t item;
    memcpy(&item, column + 8 * index, 8);
    return item;
}

static int count_columns(const uint8_t *stamps, const uint8_t *sizes, int64_t count, int64_t window, Runs *runs) {
    for (int64_t i = 0; i < count;) {
        if (count_in_window(runs, item_at(stamps, i), item_at(sizes, i), window))
            return -1;
        Run *run = &runs->items[runs->used - 1];
        int64_t first = ++i;
        uint64_t bytes = (uint64_t)run->bytes, start = (uint64_t)run->window;
        if (run->window == NO_WINDOW)
            continue;
        for (; i < count && (uint64_t)item_at(stamps, i) - start < (uint64_t)window; i++)
            bytes += (uint64_t)item_at(sizes, i);
        run->records += i - first;
        run->bytes = (int64_t)bytes;
    }
    return 0;
}

PyObject *native_tally(PyObject *module, PyObject *args) {
    Py_buffer stamps, sizes;
    long long window;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*L", &stamps, &sizes, &window))
        return NULL;
    PyObject *list = NULL;
    Runs runs = {NULL, 0, 0, 0};
    if (window <= 0)
        PyErr_Format(PyExc_ValueError, "a window of %lld ms", window);
    else if (stamps.len % 8 || stamps.len != sizes.len)
        PyErr_Format(PyExc_ValueError, "columns of %zd and %zd bytes", stamps.len, sizes.len);
    else if (count_columns(stamps.buf, sizes.buf, stamps.len / 8, window, &runs))
        PyErr_NoMemory();
    else
        list = list_of_windows(&runs);
    free(runs.items);
    PyBuffer_Release(&stamps);
    PyBuffer_Release(&sizes);
    return list;
}

/* A bytes object for `count` numbers of 8 bytes; *at is where they go. */
static PyObject *room_for(Py_ssize_t count, uint8_t **at) {
    if (count > PY_SSIZE_T_MAX / 8)
        return PyErr_NoMemory();
    PyObject *column = PyBytes_FromStringAndSize(NULL, 8 * count);
    if (column != NULL)
        *at = (uint8_t *)PyBytes_AsString(column);
    return column;
}

PyObject *native_int64s(PyObject *module, PyObject *items) {
    (void)module;
    if (!PyList_Check(items)) {
        PyErr_SetString(PyExc_TypeError, "the numbers must be in a list");
        return NULL;
    }
    Py_ssize_t count = PyList_Size(items);
    uint8_t *at = NULL;
    PyObject *column = room_for(count, &at), *last = NULL;
    int64_t number = -1;
    for (Py_ssize_t i = 0; column != NULL && i < count; i++) {
        /* Converting calls no code of Python's for an int; anything else could change the list. */
        PyObject *item = PyList_GetItem(items, i);
        if (item == NULL || item != last) { /* records of one millisecond share one object */
            number = -1;
            if (item == NULL || !PyLong_Check(item))
                PyErr_SetString(PyExc_TypeError, "an integer is required");
            else
                number = PyLong_AsLongLong(item);
            if (number == -1 && PyErr_Occurred())
                Py_CLEAR(column);
            last = item;
        }
        if (column != NULL)
            memcpy(at + 8 * i, &number, 8);
    }
    return column;
}

/* The length of bytes, 0 for None; -1 with an error. */
static int64_t length_of(PyObject *item) {
    if (item == Py_None)
        return 0;
    if (item != NULL && PyBytes_Check(item))
        return (int64_t)PyBytes_Size(item);
    PyErr_SetString(PyExc_TypeError, "keys and values must be bytes or None");
    return -1;
}

PyObject *native_sizes(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *keys, *values;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &keys, &PyList_Type, &values))
        return NULL;
    Py_ssize_t count = PyList_Size(keys);
    if (PyList_Size(values) != count) {
        PyErr_Format(PyExc_ValueError, "%zd keys and %zd values", count, PyList_Size(values));
        return NULL;
    }
    uint8_t *at = NULL;
    PyObject *column = room_for(count, &at);
    for (Py_ssize_t i = 0; column != NULL && i < count; i++) {
        int64_t key = length_of(PyList_GetItem(keys, i));
        int64_t value = key < 0 ? -1 : length_of(PyList_GetItem(values, i));
        int64_t size = key + value;
        if (value < 0)
            Py_CLEAR(column);
        else
            memcpy(at + 8 * i, &size, 8);
    }
    return column;
}

/* The end of the column's row before `index`, by its offsets. */
static int64_t end_at(const uint8_t *offsets, Py_ssize_t index) {
    int32_t end;
    memcpy(&end, offsets + 4 * index, 4);
    return end;
}

PyObject *native_lengths(PyObject *module, PyObject *args) {
    Py_buffer keys, values;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*", &keys, &values))
        return NULL;
    PyObject *column = NULL;
    uint8_t *at = NULL;
    if (keys.len != values.len || keys.len % 4 || keys.len == 0)
        PyErr_Format(PyExc_ValueError, "offsets of %zd and %zd bytes", keys.len, values.len);
    else
        column = room_for(keys.len / 4 - 1, &at);
    if (column != NULL) {
        int64_t before = end_at(keys.buf, 0) + end_at(values.buf, 0);
        for (Py_ssize_t i = 0; i < keys.len / 4 - 1; i++) {
            int64_t end = end_at(keys.buf, i + 1) + end_at(values.buf, i + 1), size = end - before;
            memcpy(at + 8 * i, &size, 8);
            before = end;
        }
    }
    PyBuffer_Release(&keys);
    PyBuffer_Release(&values);
    return column;
}
