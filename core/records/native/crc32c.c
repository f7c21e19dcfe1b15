/* CRC-32C (Castagnoli): SSE4.2 or ARMv8 instructions where the processor has them, else a table of 8 x 256. */
#include "native.h"

static uint32_t table[8][256];
static int hardware;

void crc32c_prepare(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
        table[0][i] = crc;
    }
    for (int row = 1; row < 8; row++)
        for (int i = 0; i < 256; i++)
            table[row][i] = table[row - 1][i] >> 8 ^ table[0][table[row - 1][i] & 0xFF];
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    hardware = __builtin_cpu_supports("sse4.2") != 0;
#elif defined(__ARM_FEATURE_CRC32)
    hardware = 1;
#endif
}

static uint32_t by_table(uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = table[7][low & 0xFF] ^ table[6][low >> 8 & 0xFF] ^ table[5][low >> 16 & 0xFF] ^ table[4][low >> 24] ^
              table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
        p += 8;
        n -= 8;
    }
    while (n--)
        crc = crc >> 8 ^ table[0][(crc ^ *p++) & 0xFF];
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t wide = crc;
    while (n >= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        wide = __builtin_ia32_crc32di(wide, word);
        p += 8;
        n -= 8;
    }
    crc = (uint32_t)wide;
    while (n--)
        crc = __builtin_ia32_crc32qi(crc, *p++);
    return crc;
}
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = __crc32cd(crc, word);
        p += 8;
        n -= 8;
    }
    while (n--)
        crc = __crc32cb(crc, *p++);
    return crc;
}
#else
static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t n) { return by_table(crc, p, n); }
#endif

uint32_t crc32c_extend(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    return ~(hardware ? by_instruction(crc, data, size) : by_table(crc, data, size));
}

PyObject *native_crc32c(PyObject *module, PyObject *args) {
    Py_buffer data;
    unsigned long long seed = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*|K", &data, &seed))
        return NULL;
    uint32_t crc = (uint32_t)seed;
    if (data.len < 4096) {
        crc = crc32c_extend(crc, data.buf, (size_t)data.len);
    } else {
        Py_BEGIN_ALLOW_THREADS
        crc = crc32c_extend(crc, data.buf, (size_t)data.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}
