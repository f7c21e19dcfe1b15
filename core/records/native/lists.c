/* The records of a batch as lists of Python objects, and back. */
#include "native.h"

#include <stdlib.h>

/* What reading all records finds; max_timestamp is meaningless where there are none. */
typedef struct {
    int64_t max_timestamp, keyless;
} Found;

static int check_all(const Area *area, Found *found, Fault *fault) {
    RecordCursor cursor = RECORD_CURSOR_START;
    Record record;
    found->max_timestamp = INT64_MIN;
    found->keyless = 0;
    while (cursor.index < area->count) {
        if (next_record(area, &cursor, &record, fault))
            return -1;
        if (record.timestamp > found->max_timestamp)
            found->max_timestamp = record.timestamp;
        found->keyless += record.key_size < 0;
    }
    return end_of_records(area, &cursor, fault);
}

/* check_all, without the GIL where it takes long. */
static int check_area(const Area *area, Found *found, Fault *fault) {
    int wrong;
    if (area->size < (1 << 16))
        return check_all(area, found, fault);
    Py_BEGIN_ALLOW_THREADS
    wrong = check_all(area, found, fault);
    Py_END_ALLOW_THREADS
    return wrong;
}

PyObject *native_validate(PyObject *module, PyObject *args) {
    Py_buffer data;
    long long count, base_offset, last_delta, base_timestamp;
    int fixed;
    if (!PyArg_ParseTuple(args, "y*LLLLp", &data, &count, &base_offset, &last_delta, &base_timestamp, &fixed))
        return NULL;
    Area area = {data.buf, data.len, count, base_offset, last_delta, base_timestamp, fixed};
    Found found;
    Fault fault = {""};
    int wrong = check_area(&area, &found, &fault);
    PyBuffer_Release(&data);
    if (wrong)
        return raise_corrupt(module, fault.text);
    return Py_BuildValue("(LL)", (long long)(count > 0 ? found.max_timestamp : -1), (long long)found.keyless);
}

static PyObject *bytes_or_none(const Area *area, int64_t at, int64_t size) {
    if (size < 0)
        return Py_NewRef(Py_None);
    return PyBytes_FromStringAndSize((const char *)area->data + at, (Py_ssize_t)size);
}

static PyObject *headers_of(const Area *area, const Record *record, int64_t end) {
    PyObject *all = PyTuple_New((Py_ssize_t)record->header_count);
    int64_t pos = record->headers, number;
    for (int64_t i = 0; all != NULL && i < record->header_count; i++) {
        Header header;
        const char *what;
        PyObject *pair = NULL;
        if (next_header(area, &pos, end, &header, &what, &number))
            PyErr_SetString(PyExc_ValueError, "the records changed while they were read");
        else
            pair = Py_BuildValue("(NN)",
                                 PyUnicode_DecodeUTF8((const char *)area->data + header.name,
                                                      (Py_ssize_t)header.name_size, "strict"),
                                 bytes_or_none(area, header.value, header.value_size));
        if (pair == NULL || PyTuple_SetItem(all, (Py_ssize_t)i, pair) < 0)
            Py_CLEAR(all);
    }
    return all;
}

/* The headers that were made last, and their bytes in the area. */
typedef struct {
    PyObject *made;
    int64_t at, size, count;
} Made;

/* Mostly all records of a batch have the same headers: one tuple then, which nobody can change. */
static PyObject *shared_headers(const Area *area, const Record *record, int64_t end, Made *last) {
    int64_t size = end - record->headers;
    if (last->made != NULL && size == last->size && record->header_count == last->count &&
        !memcmp(area->data + record->headers, area->data + last->at, (size_t)size))
        return Py_NewRef(last->made);
    PyObject *made = headers_of(area, record, end);
    Py_XDECREF(last->made);
    *last = (Made){Py_XNewRef(made), record->headers, size, record->header_count};
    return made;
}

/* Puts `item` (stolen) into a list; NULL is an error. */
static int put(PyObject *list, int64_t index, PyObject *item) {
    return item == NULL ? -1 : PyList_SetItem(list, (Py_ssize_t)index, item);
}

static int fill(const Area *area, PyObject *lists[5], PyObject *no_headers, Fault *fault) {
    RecordCursor cursor = RECORD_CURSOR_START;
    Record record;
    PyObject *stamp = NULL;
    Made last = {NULL, 0, 0, 0};
    int64_t stamped = 0;
    int result = -1;
    for (int64_t i = 0; i < area->count; i++) {
        if (next_record(area, &cursor, &record, fault))
            goto done;
        if (stamp == NULL || stamped != record.timestamp) {
            Py_XDECREF(stamp);
            stamped = record.timestamp;
            stamp = PyLong_FromLongLong(stamped);
            if (stamp == NULL)
                goto done;
        }
        PyObject *headers =
            record.header_count ? shared_headers(area, &record, cursor.pos, &last) : Py_NewRef(no_headers);
        if (put(lists[4], i, headers) || put(lists[0], i, PyLong_FromLongLong(record.offset)) ||
            put(lists[1], i, Py_NewRef(stamp)) || put(lists[2], i, bytes_or_none(area, record.key, record.key_size)) ||
            put(lists[3], i, bytes_or_none(area, record.value, record.value_size)))
            goto done;
    }
    result = 0;
done:
    Py_XDECREF(stamp);
    Py_XDECREF(last.made);
    return result;
}

PyObject *native_lists(PyObject *module, PyObject *args) {
    Py_buffer data;
    long long count, base_offset, last_delta, base_timestamp;
    int fixed;
    if (!PyArg_ParseTuple(args, "y*LLLLp", &data, &count, &base_offset, &last_delta, &base_timestamp, &fixed))
        return NULL;
    Area area = {data.buf, data.len, count, base_offset, last_delta, base_timestamp, fixed};
    Fault fault = {""};
    PyObject *lists[5] = {NULL}, *result = NULL, *no_headers = NULL;
    Found found;
    if (check_area(&area, &found, &fault)) {
        raise_corrupt(module, fault.text);
        goto done;
    }
    if ((no_headers = PyTuple_New(0)) == NULL)
        goto done;
    for (int i = 0; i < 5; i++)
        if ((lists[i] = PyList_New((Py_ssize_t)(count > 0 ? count : 0))) == NULL)
            goto done;
    if (fill(&area, lists, no_headers, &fault)) {
        if (!PyErr_Occurred())
            raise_corrupt(module, fault.text);
        goto done;
    }
    result = PyTuple_New(5);
    for (int i = 0; result != NULL && i < 5; i++) {
        PyTuple_SetItem(result, i, lists[i]);
        lists[i] = NULL;
    }
done:
    for (int i = 0; i < 5; i++)
        Py_XDECREF(lists[i]);
    Py_XDECREF(no_headers);
    PyBuffer_Release(&data);
    return result;
}

/* -- writing */

/* A key, value or header value: its bytes; size -1 for None. */
static int plain(PyObject *object, const char *name, char **data, Py_ssize_t *size) {
    if (object == Py_None) {
        *size = -1;
        return 0;
    }
    if (PyBytes_Check(object))
        return PyBytes_AsStringAndSize(object, data, size);
    PyErr_Format(PyExc_TypeError, "a %s is bytes or None, not %R", name, (PyObject *)Py_TYPE(object));
    return -1;
}

/* Writes (to != NULL) or measures a record's headers. -1 with an exception. */
static int64_t put_headers(PyObject *headers, uint8_t *to) {
    Py_ssize_t count = PyTuple_Size(headers), size;
    char *data;
    if (count < 0)
        return -1;
    int64_t total = varint_size(count);
    if (to != NULL)
        to = put_varint(to, count);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyTuple_GetItem(headers, i);
        if (pair == NULL || !PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "a header is a pair of name and value");
            return -1;
        }
        const char *name = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(pair, 0), &size);
        if (name == NULL)
            return -1;
        total += varint_size(size) + size;
        if (to != NULL) {
            to = put_varint(to, size);
            memcpy(to, name, (size_t)size);
            to += size;
        }
        if (plain(PyTuple_GetItem(pair, 1), "header's value", &data, &size))
            return -1;
        total += varint_size(size) + (size > 0 ? size : 0);
        if (to != NULL) {
            to = put_varint(to, size);
            if (size > 0) {
                memcpy(to, data, (size_t)size);
                to += size;
            }
        }
    }
    return total;
}

typedef struct {
    int64_t timestamp, body, headers;
    PyObject *header_tuple;
    char *key, *value;
    Py_ssize_t key_size, value_size;
} Row;

/* `row` is the record before; zeroes for the first. */
static int read_row(PyObject *records, Py_ssize_t index, int64_t *base, Row *row) {
    PyObject *tuple = PyList_GetItem(records, index);
    if (tuple == NULL || !PyTuple_Check(tuple) || PyTuple_Size(tuple) != 4) {
        PyErr_SetString(PyExc_TypeError, "a record is a tuple of timestamp, key, value and headers");
        return -1;
    }
    PyObject *stamp = PyTuple_GetItem(tuple, 0);
    if (!PyLong_Check(stamp)) {
        PyErr_SetString(PyExc_TypeError, "a timestamp is an int");
        return -1;
    }
    row->timestamp = PyLong_AsLongLong(stamp);
    if (row->timestamp == -1 && PyErr_Occurred())
        return -1;
    if (index == 0)
        *base = row->timestamp;
    if (plain(PyTuple_GetItem(tuple, 1), "key", &row->key, &row->key_size) ||
        plain(PyTuple_GetItem(tuple, 2), "value", &row->value, &row->value_size))
        return -1;
    PyObject *headers = PyTuple_GetItem(tuple, 3);
    if (headers != row->header_tuple) { /* mostly all records of a producer have the same tuple */
        if (!PyTuple_Check(headers)) {
            PyErr_SetString(PyExc_TypeError, "headers are a tuple");
            return -1;
        }
        row->headers = put_headers(headers, NULL);
        if (row->headers < 0)
            return -1;
        row->header_tuple = headers;
    }
    int64_t delta;
    if (__builtin_sub_overflow(row->timestamp, *base, &delta)) {
        PyErr_SetString(PyExc_OverflowError, "two timestamps of a batch are more than 64 bits apart");
        return -1;
    }
    row->body = 1 + varint_size(delta) + varint_size(index) + varint_size(row->key_size) +
                (row->key_size > 0 ? row->key_size : 0) + varint_size(row->value_size) +
                (row->value_size > 0 ? row->value_size : 0) + row->headers;
    return 0;
}

static uint8_t *put_bytes(uint8_t *to, const char *data, Py_ssize_t size) {
    to = put_varint(to, size);
    if (size > 0) {
        memcpy(to, data, (size_t)size);
        to += size;
    }
    return to;
}

/* Measures the records: the first timestamp, the latest, the size of the batch, and what windows they lie in. */
static int measure(PyObject *records, int64_t window, int64_t *base, int64_t *latest, int64_t *total, Runs *runs) {
    Row row = {0};
    Py_ssize_t count = PyList_Size(records);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (read_row(records, i, base, &row))
            return -1;
        if (i == 0 || row.timestamp > *latest)
            *latest = row.timestamp;
        *total += varint_size(row.body) + row.body;
        if (*total > INT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "a record batch is at most 2^31 - 1 bytes");
            return -1;
        }
        int64_t bytes = (row.key_size > 0 ? row.key_size : 0) + (row.value_size > 0 ? row.value_size : 0);
        if (window > 0 && count_in_window(runs, row.timestamp, bytes, window)) {
            PyErr_NoMemory();
            return -1;
        }
    }
    return 0;
}

static int write_records(PyObject *records, int64_t base, uint8_t *to) {
    PyObject *written = NULL;
    Row row = {0};
    uint8_t *written_at = NULL;
    Py_ssize_t count = PyList_Size(records);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (read_row(records, i, &base, &row))
            return -1;
        to = put_varint(to, row.body);
        *to++ = 0;
        to = put_varint(to, row.timestamp - base);
        to = put_varint(to, i);
        to = put_bytes(to, row.key, row.key_size);
        to = put_bytes(to, row.value, row.value_size);
        if (row.header_tuple == written)
            memcpy(to, written_at, (size_t)row.headers);
        else
            put_headers(row.header_tuple, to);
        written = row.header_tuple;
        written_at = to;
        to += row.headers;
    }
    return 0;
}

PyObject *native_encode_records(PyObject *module, PyObject *args) {
    PyObject *records, *batch = NULL, *counted;
    long long window = 0;
    Py_ssize_t room = 0;
    int64_t base = 0, latest = 0, total = HEADER_SIZE;
    Runs runs = {NULL, 0, 0, 0};
    (void)module;
    if (!PyArg_ParseTuple(args, "O|nL", &records, &room, &window))
        return NULL;
    if (!PyList_Check(records) || PyList_Size(records) < 1) {
        PyErr_SetString(PyExc_ValueError, "a record batch holds at least one record");
        return NULL;
    }
    if (room < 0 || room > INT32_MAX || window < 0) {
        PyErr_Format(PyExc_ValueError, "room of %zd bytes, a window of %lld ms", room, window);
        return NULL;
    }
    /* The GIL is held and no Python code runs: what was measured is what is written. */
    if (!measure(records, window, &base, &latest, &total, &runs))
        batch = PyByteArray_FromStringAndSize(NULL, room + (Py_ssize_t)total);
    if (batch != NULL) {
        uint8_t *to = (uint8_t *)PyByteArray_AsString(batch);
        memset(to, 0, (size_t)room + HEADER_SIZE);
        if (write_records(records, base, to + room + HEADER_SIZE))
            Py_CLEAR(batch);
    }
    counted = batch == NULL ? NULL : list_of_windows(&runs);
    free(runs.items);
    if (counted == NULL) {
        Py_XDECREF(batch);
        return NULL;
    }
    return Py_BuildValue("(NLLN)", batch, (long long)base, (long long)latest, counted);
}

/* Where the first record of an area is: `body` behind its length, `count_at` the number of its headers, `headers`
 * behind that, `end`. */
typedef struct {
    int64_t body, count_at, number, headers, end;
} Place;

/* 0 when the record's lengths fit its own length; -1 otherwise. Its headers are not checked, nor is its end within the
 * data. */
static int find_first(const uint8_t *data, int64_t size, Place *place) {
    const char *what;
    int64_t pos = 0, length, n;
    if (read_varint(data, &pos, size, 32, "", &length, &what) || length < 0)
        return -1;
    place->body = pos++;
    if (read_varint(data, &pos, size, 64, "", &n, &what) || read_varint(data, &pos, size, 32, "", &n, &what))
        return -1;
    for (int part = 0; part < 2; part++) {
        if (read_varint(data, &pos, size, 32, "", &n, &what) || n < -1 || n > size - pos)
            return -1;
        pos += n > 0 ? n : 0;
    }
    place->count_at = pos;
    if (read_varint(data, &pos, size, 32, "", &n, &what) || n < 0 || pos - place->body > length)
        return -1;
    place->number = n;
    place->headers = pos;
    place->end = place->body + length;
    return 0;
}

PyObject *native_first_headers(PyObject *module, PyObject *data) {
    Py_buffer buffer;
    Place place;
    (void)module;
    if (PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE))
        return NULL;
    PyObject *found;
    if (find_first(buffer.buf, buffer.len, &place) || place.end > buffer.len)
        found = Py_NewRef(Py_None);
    else
        found = PyBytes_FromStringAndSize((const char *)buffer.buf + place.headers,
                                          (Py_ssize_t)(place.end - place.headers));
    PyBuffer_Release(&buffer);
    return found;
}

/* The first record again, with the headers behind its own: where it grows, it grows into the room in front. */
PyObject *native_add_headers(PyObject *module, PyObject *args) {
    PyObject *batch, *headers;
    Py_ssize_t room;
    Place place;
    (void)module;
    if (!PyArg_ParseTuple(args, "OnO", &batch, &room, &headers))
        return NULL;
    if (!PyByteArray_Check(batch) || !PyTuple_Check(headers)) {
        PyErr_SetString(PyExc_TypeError, "headers are a tuple, a batch is a bytearray");
        return NULL;
    }
    int64_t start = room + HEADER_SIZE, size = PyByteArray_Size(batch), added = PyTuple_Size(headers);
    if (room < 0 || start > size || find_first((uint8_t *)PyByteArray_AsString(batch) + start, size - start, &place) ||
        place.end > size - start || place.number > INT32_MAX - added) {
        PyErr_SetString(PyExc_ValueError, "a batch begins with its room and a whole record");
        return NULL;
    }
    int64_t encoded = put_headers(headers, NULL), count_size = varint_size(added);
    if (encoded < 0)
        return NULL;
    int64_t more = encoded - count_size, number_size = varint_size(place.number + added);
    int64_t body = (place.count_at - place.body) + number_size + (place.end - place.headers) + more;
    int64_t record = varint_size(body) + body;
    if (record > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a record batch is at most 2^31 - 1 bytes");
        return NULL;
    }
    uint8_t *made = PyMem_Malloc((size_t)(record + encoded));
    if (made == NULL)
        return PyErr_NoMemory();
    const uint8_t *first = (uint8_t *)PyByteArray_AsString(batch) + start;
    uint8_t *to = put_varint(made, body);
    memcpy(to, first + place.body, (size_t)(place.count_at - place.body));
    to = put_varint(to + (place.count_at - place.body), place.number + added);
    memcpy(to, first + place.headers, (size_t)(place.end - place.headers));
    to += place.end - place.headers;
    put_headers(headers, made + record);
    memcpy(to, made + record + count_size, (size_t)more);
    int64_t unused = room - (record - place.end);
    int failed = 0;
    if (unused < 0) { /* the records behind it move */
        failed = PyByteArray_Resize(batch, (Py_ssize_t)(size - unused));
        if (!failed) {
            uint8_t *rest = (uint8_t *)PyByteArray_AsString(batch) + start + place.end;
            memmove(rest - unused, rest, (size_t)(size - start - place.end));
            unused = 0;
        }
    }
    if (!failed) {
        memcpy((uint8_t *)PyByteArray_AsString(batch) + unused + HEADER_SIZE, made, (size_t)record);
        memset((uint8_t *)PyByteArray_AsString(batch) + unused, 0, HEADER_SIZE);
        failed = unused && PySequence_DelSlice(batch, 0, (Py_ssize_t)unused);
    }
    PyMem_Free(made);
    return failed ? NULL : Py_NewRef(Py_None);
}
