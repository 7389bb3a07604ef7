/* libFuzzer as a module of Python.
 *
 *   run(arguments, test, mutate, limit)
 *
 * test(view) -> int     runs one input; returns how many of its bytes were read
 * mutate(view, most, seed) -> bytes     changes an input; called for one mutation in eight
 * limit                 the process ends when so many bytes were read
 *
 * The view that `test` gets is libFuzzer's own copy of the input: memory of exactly its size. An
 * exception of `test` is a finding, as a report of a sanitizer is.
 *
 * Most mutations are libFuzzer's. Since one of them usually breaks the rest of a stream, the driver
 * also keeps beginnings that were read without a fault, and puts some in front of an input: so long
 * streams are read, and what is changed stands behind many good frames. And it remembers how far an
 * input was read, to drop most of what stands behind the fault: nobody looks at that.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerRunDriver(int *argc, char ***argv, int (*test)(const uint8_t *, size_t));
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

enum { GOOD = 512, GOOD_SIZE = 4096, KNOWN = 1 << 14, TAIL = 64 };

static PyObject *test, *mutate;
static unsigned long long inputs, given, read_, limit;
static double began, told;
static struct { size_t size; uint8_t data[GOOD_SIZE]; } good[GOOD];
static size_t goods;
static struct { uint64_t code; size_t used; } known[KNOWN];

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void tell(void)
{
    told = now();
    fprintf(stderr, "native: inputs %llu given %llu read %llu seconds %.1f cpu %.1f\n",
            inputs, given, read_, told - began, (double)clock() / CLOCKS_PER_SEC);
}

static void found(void)
{
    PyErr_Print();
    tell();
    fflush(stderr);
    abort(); /* libFuzzer writes the input to a file and ends the process */
}

static uint64_t code_of(const uint8_t *data, size_t size)
{
    uint64_t code = 0x9E3779B97F4A7C15u ^ size, word;
    for (; size >= 8; data += 8, size -= 8) {
        memcpy(&word, data, 8);
        code = (code ^ word) * 0xD6E8FEB86659FD93u;
        code ^= code >> 32;
    }
    while (size--)
        code = (code ^ *data++) * 0xD6E8FEB86659FD93u;
    return code ^ code >> 32;
}

/* Let `test` read an input; returns how many bytes it read. */
static size_t try_one(const uint8_t *data, size_t size)
{
    PyObject *view = PyMemoryView_FromMemory((char *)data, (Py_ssize_t)size, PyBUF_READ);
    PyObject *result = view ? PyObject_CallOneArg(test, view) : NULL;
    uint64_t code = code_of(data, size);
    long long used = result ? PyLong_AsLongLong(result) : -1;
    if (used < 0 || (size_t)used > size || PyErr_Occurred())
        found();
    Py_DECREF(result);
    result = PyObject_CallMethod(view, "release", NULL); /* fails where somebody kept it */
    if (result == NULL)
        found();
    Py_DECREF(result);
    Py_DECREF(view);
    inputs++;
    given += size;
    read_ += (unsigned long long)used;
    known[code % KNOWN].code = code;
    known[code % KNOWN].used = (size_t)used;
    return (size_t)used;
}

/* Keep a beginning that was read, if it can also be read behind another one. */
static void keep(const uint8_t *data, size_t size)
{
    static unsigned dice = 1;
    size_t k = goods ? rand_r(&dice) % goods : 0, front = goods ? good[k].size : size;
    uint8_t *both;
    if (goods == GOOD && rand_r(&dice) % 8)
        return;
    both = malloc(front + size);
    memcpy(both, goods ? good[k].data : data, front);
    memcpy(both + front, data, size);
    if (try_one(both, front + size) == front + size) {
        k = goods < GOOD ? goods++ : rand_r(&dice) % GOOD;
        good[k].size = size;
        memcpy(good[k].data, data, size);
    }
    free(both);
}

static int run_one(const uint8_t *data, size_t size)
{
    size_t used = try_one(data, size);
    if (used > 0 && used <= GOOD_SIZE)
        keep(data, used);
    if (inputs % 256 < 2 && now() - told > 5)
        tell();
    if (read_ >= limit) {
        tell();
        fflush(stderr);
        _exit(0);
    }
    return 0;
}

/* Put good beginnings in front of the input, up to a length that is often small. */
static size_t lengthen(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    size_t room = most - size, at = 0, wish;
    uint8_t *front = malloc(most);
    wish = room >> (rand_r(&seed) % 10);
    while (goods && at < wish) {
        size_t k = rand_r(&seed) % goods;
        if (at + good[k].size > room)
            break;
        memcpy(front + at, good[k].data, good[k].size);
        at += good[k].size;
    }
    memmove(data + at, data, size);
    memcpy(data, front, at);
    free(front);
    return at + size;
}

__attribute__((visibility("default")))
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    unsigned dice = seed;
    int way = rand_r(&dice) % 8;
    uint64_t code = code_of(data, size);
    if (known[code % KNOWN].code == code && rand_r(&dice) % 4) {
        size_t kept = known[code % KNOWN].used + TAIL;
        if (kept < size)
            size = kept;
    }
    if (way == 0 && size <= 4096) {
        PyObject *made = PyObject_CallFunction(mutate, "y#nI", data, (Py_ssize_t)size,
                                               (Py_ssize_t)(most < 4096 ? most : 4096), seed);
        char *bytes;
        Py_ssize_t length;
        if (made == NULL || PyBytes_AsStringAndSize(made, &bytes, &length) < 0)
            found();
        memcpy(data, bytes, (size_t)length);
        Py_DECREF(made);
        return (size_t)length;
    }
    if (way < 4 && size < most) {
        if (way != 1 && size)
            size = LLVMFuzzerMutate(data, size, most);
        size = lengthen(data, size, most, dice);
        return size;
    }
    /* Behind a change little is read: in a long input the last bytes are the ones to change. */
    if (size > 2048 && way != 4) {
        size_t kept = size - 1 - rand_r(&dice) % 1024;
        return kept + LLVMFuzzerMutate(data + kept, size - kept, most - kept);
    }
    return LLVMFuzzerMutate(data, size, most);
}

/* An input as libFuzzer mutates it, for `mutate`. */
static PyObject *flip(PyObject *self, PyObject *args)
{
    Py_buffer data;
    Py_ssize_t most;
    uint8_t *copy;
    PyObject *result;
    if (!PyArg_ParseTuple(args, "y*n", &data, &most))
        return NULL;
    copy = malloc(most > data.len ? most : data.len + 1);
    memcpy(copy, data.buf, data.len);
    if (data.len < most)
        most = LLVMFuzzerMutate(copy, data.len, most);
    else
        most = LLVMFuzzerMutate(copy, most, most);
    result = PyBytes_FromStringAndSize((char *)copy, most);
    free(copy);
    PyBuffer_Release(&data);
    return result;
}

static PyObject *run(PyObject *self, PyObject *args)
{
    PyObject *list;
    int argc;
    char **argv;
    if (!PyArg_ParseTuple(args, "OOOK", &list, &test, &mutate, &limit))
        return NULL;
    argc = (int)PyList_Size(list);
    argv = calloc(argc + 1, sizeof *argv);
    for (int k = 0; k < argc; k++) {
        const char *text = PyUnicode_AsUTF8(PyList_GetItem(list, k));
        if (text == NULL)
            return NULL;
        argv[k] = strdup(text);
    }
    began = told = now();
    argc = LLVMFuzzerRunDriver(&argc, &argv, run_one);
    tell();
    return PyLong_FromLong(argc);
}

static PyMethodDef methods[] = {
    {"run", run, METH_VARARGS, "Run libFuzzer."},
    {"flip", flip, METH_VARARGS, "Mutate bytes as libFuzzer does."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "driver", NULL, -1, methods};

PyMODINIT_FUNC PyInit_driver(void)
{
    return PyModule_Create(&module);
}
