/* The fast path of Produce: the request that clients send most, and its response. core/protocol/produce/fast_path.py
   says which one that is, core/records/checked_batch.py what its batch has passed. */
#include "native.h"

#define FIRST_VERSION 3
#define FLEXIBLE 9
#define TOPIC_IDS 13
#define LAST_VERSION 13
#define ID 16
#define CLIENT_AT 10
#define LONGEST_COMPACT 126
#define MOST_BYTES (512 * 1024)
#define CHECKED_BYTES 4096
#define KAFKAS_CODECS 5

/* Where the parts of a request are; positions count from its first byte. */
typedef struct {
    int version, acks;
    int32_t correlation_id, timeout_ms, partition;
    int64_t client_end, topic, topic_end, records, records_end;
} Request;

static int get_i16(const uint8_t *p) { return (int16_t)((uint16_t)p[0] << 8 | p[1]); }

/* 1 where the parts lie within `size` bytes and are of the form of the fast path. */
static int find_parts(const uint8_t *p, int64_t size, Request *r) {
    int64_t at = r->client_end;
    if (size - at < 14)
        return 0;
    int name = get_i16(p + at + 12);
    r->acks = get_i16(p + at + 2);
    r->timeout_ms = get_i32(p + at + 4);
    if (get_i16(p + at) != -1 || get_i32(p + at + 8) != 1 || name <= 0)
        return 0;
    r->topic = at + 14;
    r->topic_end = r->topic + name;
    if (size - r->topic_end < 12 || get_i32(p + r->topic_end) != 1)
        return 0;
    r->partition = get_i32(p + r->topic_end + 4);
    r->records = r->topic_end + 12;
    r->records_end = r->records + get_i32(p + r->topic_end + 8);
    return r->records_end >= r->records && r->records_end <= size;
}

/* As find_parts, of the flexible version. */
static int find_compact_parts(const uint8_t *p, int64_t size, Request *r) {
    int64_t at = r->client_end;
    if (size - at < 10)
        return 0;
    int by_id = r->version >= TOPIC_IDS;
    int name = by_id ? ID + 1 : p[at + 9];
    r->acks = get_i16(p + at + 2);
    r->timeout_ms = get_i32(p + at + 4);
    if (p[at] || p[at + 1] || p[at + 8] != 2 || name <= 1 || name > LONGEST_COMPACT + 1)
        return 0;
    r->topic = at + 10 - by_id;
    r->topic_end = r->topic + name - 1;
    if (size - r->topic_end < 5 || p[r->topic_end] != 2)
        return 0;
    r->partition = get_i32(p + r->topic_end + 1);
    uint64_t length = 0;
    int64_t pos = r->topic_end + 5;
    for (int shift = 0;; shift += 7) {
        if (shift == 35 || pos >= size)
            return 0;
        uint8_t byte = p[pos++];
        length |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            break;
    }
    if (length == 0 || (int64_t)length - 1 > size - pos)
        return 0;
    r->records = pos;
    r->records_end = pos + (int64_t)length - 1;
    const uint8_t *tags = p + r->records_end;
    return size - r->records_end >= 3 && !tags[0] && !tags[1] && !tags[2];
}

static int is_one_batch(const uint8_t *p, int64_t size, Request *r) {
    if (size < CLIENT_AT || get_i16(p) != 0)
        return 0;
    r->version = get_i16(p + 2);
    r->correlation_id = get_i32(p + 4);
    int client = get_i16(p + 8);
    r->client_end = CLIENT_AT + (client > 0 ? client : 0);
    if (r->version < FIRST_VERSION || r->version > LAST_VERSION)
        return 0;
    if (!(r->version >= FLEXIBLE ? find_compact_parts : find_parts)(p, size, r))
        return 0;
    return r->acks == 1 || r->acks == -1;
}

/* Whether a batch breaks no rule that holds for every topic: check_batch of klammtest.native.produce_twin. */
static int is_ordinary(const uint8_t *b, int64_t size) {
    if (size < HEADER_SIZE || size > MOST_BYTES)
        return 0;
    int32_t count = get_i32(b + 57), sequence = get_i32(b + 53);
    int64_t producer = get_i64(b + 43);
    int attributes = get_i16(b + CRC_FROM);
    return b[16] == MAGIC && get_i32(b + 8) == size - LENGTH_OVERHEAD && count >= 1 && get_i32(b + 23) == count - 1 &&
           attributes >= 0 && attributes < KAFKAS_CODECS &&
           ((producer >= 0 && sequence >= 0) || (producer == -1 && sequence >= -1));
}

/* 0 with `*text`, None (no error) where it is not UTF-8, -1 with an error. */
static int decode(const uint8_t *p, int64_t size, PyObject **text) {
    *text = PyUnicode_DecodeUTF8((const char *)p, (Py_ssize_t)size, NULL);
    if (*text == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
        return 0;
    }
    return *text == NULL ? -1 : 0;
}

static PyObject *view_of(PyObject *frame, const Request *r) {
    PyObject *result = NULL, *whole = PyMemoryView_FromObject(frame);
    if (whole != NULL) {
        result = PySequence_GetSlice(whole, (Py_ssize_t)r->records, (Py_ssize_t)r->records_end);
        Py_DECREF(whole);
    }
    return result;
}

/* A tuple of `count` items, which it takes; NULL where one of them is missing. */
static PyObject *tuple_of(PyObject **items, int count) {
    PyObject *result = PyTuple_New(count);
    int wrong = result == NULL;
    for (int i = 0; i < count; i++) {
        wrong |= items[i] == NULL;
        if (result == NULL)
            Py_XDECREF(items[i]);
        else
            PyTuple_SetItem(result, i, items[i]);
    }
    if (wrong)
        Py_CLEAR(result);
    return result;
}

/* CheckedBatch: the batch and the fields of its header that an append needs. */
static PyObject *checked_batch(PyObject *frame, const Request *r, const uint8_t *b, long long crc) {
    PyObject *items[] = {
        view_of(frame, r),
        PyLong_FromLong(get_i32(b + 57)),
        PyLong_FromLongLong(get_i64(b + 27)),
        PyLong_FromLongLong(get_i64(b + 35)),
        PyLong_FromLong(get_i16(b + CRC_FROM)),
        PyLong_FromLongLong(get_i64(b + 43)),
        PyLong_FromLongLong(crc),
    };
    return tuple_of(items, sizeof items / sizeof *items);
}

/* FastProduceRequest; takes `client` and `topic`. */
static PyObject *fast_request(PyObject *frame, const Request *r, PyObject *client, PyObject *topic, long long crc,
                              const uint8_t *b) {
    PyObject *items[] = {
        PyLong_FromLong(r->version),    PyLong_FromLong(r->correlation_id),
        client,                         PyLong_FromLong(r->acks),
        PyLong_FromLong(r->timeout_ms), topic,
        PyLong_FromLong(r->partition),  checked_batch(frame, r, b, crc),
    };
    return tuple_of(items, sizeof items / sizeof *items);
}

static PyObject *read_request(PyObject *frame, const uint8_t *p, int64_t size) {
    Request r;
    PyObject *topic = NULL, *client = NULL;
    if (!is_one_batch(p, size, &r) || !is_ordinary(p + r.records, r.records_end - r.records))
        return Py_NewRef(Py_None);
    const uint8_t *b = p + r.records;
    int64_t length = r.records_end - r.records;
    long long crc = get_u32(b + CRC_AT);
    if (length <= CHECKED_BYTES) {
        if (crc32c_extend(0, b + CRC_FROM, (size_t)(length - CRC_FROM)) != crc)
            return Py_NewRef(Py_None);
        crc = -1;
    }
    if (decode(p + CLIENT_AT, r.client_end - CLIENT_AT, &client))
        return NULL;
    if (client == NULL)
        return Py_NewRef(Py_None);
    if (r.version >= TOPIC_IDS)
        topic = PyBytes_FromStringAndSize((const char *)p + r.topic, ID);
    else if (decode(p + r.topic, r.topic_end - r.topic, &topic) == 0 && topic == NULL) {
        Py_DECREF(client);
        return Py_NewRef(Py_None);
    }
    if (topic == NULL) {
        Py_DECREF(client);
        return NULL;
    }
    return fast_request(frame, &r, client, topic, crc, b);
}

PyObject *native_read_fast_produce_request(PyObject *module, PyObject *frame) {
    Py_buffer data;
    (void)module;
    if (PyObject_GetBuffer(frame, &data, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = read_request(frame, data.buf, data.len);
    PyBuffer_Release(&data);
    return result;
}

static uint8_t *put_i32(uint8_t *p, int64_t v) {
    put_u32(p, (uint32_t)v);
    return p + 4;
}
static uint8_t *put_i64(uint8_t *p, int64_t v) {
    put_u64(p, (uint64_t)v);
    return p + 8;
}
static uint8_t *put_zeros(uint8_t *p, int count) {
    memset(p, 0, (size_t)count);
    return p + count;
}

/* Correlation id, partition, base offset, time, start offset, throttle time. */
enum { CORRELATION, PARTITION, BASE, TIME, START, THROTTLE, NUMBERS };

static uint8_t *write_response(uint8_t *p, int version, const int64_t *n, const char *topic, int64_t size) {
    int flexible = version >= FLEXIBLE;
    p = put_i32(p, n[CORRELATION]);
    if (flexible) {
        *p++ = 0;
        *p++ = 2;
        if (version < TOPIC_IDS)
            *p++ = (uint8_t)(size + 1);
    } else {
        p = put_i32(p, 1);
        put_u16(p, (uint16_t)size);
        p += 2;
    }
    memcpy(p, topic, (size_t)size);
    p += size;
    if (flexible)
        *p++ = 2;
    else
        p = put_i32(p, 1);
    p = put_zeros(put_i32(p, n[PARTITION]), 2);
    p = put_i64(put_i64(p, n[BASE]), n[TIME]);
    if (version >= 5)
        p = put_i64(p, n[START]);
    if (flexible) {
        *p++ = 1; /* no errors of records */
        p = put_zeros(p, 3);
    } else if (version >= 8) {
        p = put_zeros(p, 4);
        put_u16(p, 0xFFFF);
        p += 2;
    }
    p = put_i32(p, n[THROTTLE]);
    return flexible ? put_zeros(p, 1) : p;
}

PyObject *native_write_fast_produce_response(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    int64_t n[NUMBERS];
    Py_ssize_t size;
    char *id;
    (void)module;
    int by_id = count == NUMBERS + 2 && PyBytes_Check(args[1]);
    if (count != NUMBERS + 2 || !(by_id || PyUnicode_Check(args[1]))) {
        PyErr_SetString(PyExc_TypeError, "write_fast_produce_response takes a version, a topic and six numbers");
        return NULL;
    }
    long version = PyLong_AsLong(args[0]);
    const char *topic;
    if (by_id)
        topic = PyBytes_AsStringAndSize(args[1], &id, &size) < 0 ? NULL : id;
    else
        topic = PyUnicode_AsUTF8AndSize(args[1], &size);
    if (topic == NULL)
        return NULL;
    int right = version >= FIRST_VERSION && version <= LAST_VERSION && by_id == (version >= TOPIC_IDS) &&
                size <= (version >= FLEXIBLE ? LONGEST_COMPACT : 255) && (!by_id || size == ID);
    for (int i = 0; i < NUMBERS && !PyErr_Occurred(); i++) {
        n[i] = PyLong_AsLongLong(args[i + 2]);
        int narrow = i == CORRELATION || i == PARTITION || i == THROTTLE;
        right &= !narrow || n[i] == (int32_t)n[i];
    }
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return NULL;
        PyErr_Clear();
        right = 0;
    }
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "a version, a topic or a number that no Produce response holds");
        return NULL;
    }
    uint8_t made[4 + 80 + 256];
    uint8_t *end = write_response(made + 4, (int)version, n, topic, size);
    put_u32(made, (uint32_t)(end - made - 4));
    return PyBytes_FromStringAndSize((const char *)made, end - made);
}
