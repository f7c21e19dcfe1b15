/* The records of a batch as lists of Python objects, and back. */
#include "native.h"

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

PyObject *native_encode_records(PyObject *module, PyObject *args) {
    PyObject *records, *written = NULL;
    Row row = {0};
    uint8_t *written_at = NULL;
    int64_t base = 0, latest = 0, total = HEADER_SIZE;
    (void)module;
    if (!PyArg_ParseTuple(args, "O", &records))
        return NULL;
    if (!PyList_Check(records) || PyList_Size(records) < 1) {
        PyErr_SetString(PyExc_ValueError, "a record batch holds at least one record");
        return NULL;
    }
    /* The GIL is held and no Python code runs: what was measured is what is written. */
    Py_ssize_t count = PyList_Size(records);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (read_row(records, i, &base, &row))
            return NULL;
        if (i == 0 || row.timestamp > latest)
            latest = row.timestamp;
        total += varint_size(row.body) + row.body;
        if (total > INT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "a record batch is at most 2^31 - 1 bytes");
            return NULL;
        }
    }
    PyObject *batch = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (batch == NULL)
        return NULL;
    uint8_t *to = (uint8_t *)PyByteArray_AsString(batch);
    memset(to, 0, HEADER_SIZE);
    to += HEADER_SIZE;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (read_row(records, i, &base, &row)) {
            Py_DECREF(batch);
            return NULL;
        }
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
    return Py_BuildValue("(NLL)", batch, (long long)base, (long long)latest);
}
