/* SPDX-License-Identifier: Apache-2.0
 *
 * Each check allocates what it needs, lets the device work and compares with plain C.
 */
#include "tests/gpu/device_checks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "tests/gpu/check_kernels.h"

enum {
    BLOCKS = 37,
    N = BLOCKS * CHECK_THREADS,
    ROUNDS = 5,
    BUFFERS_MAX = 16,
};

const struct hps_kernel *const device_check_kernels[] = {&check_warp, &check_block, &check_memory,
                                                         &check_atomic};
const size_t n_device_check_kernels =
    sizeof(device_check_kernels) / sizeof(device_check_kernels[0]);

/* A device, a stream, and buffers that exist on both sides. */
struct rig {
    struct hps_device *device;
    struct hps_stream_q *stream;
    struct hps_event *event;
    struct hps_error *err;
    bool failed;
    size_t n_buffers;
    struct buffer {
        void *host;
        hps_devptr mapped;
        hps_devptr device;
        size_t size;
    } buffers[BUFFERS_MAX];
};

static bool rig_ok(struct rig *rig, hps_status status, const char *what)
{
    if (status != HPS_OK && !rig->failed) {
        rig->failed = true;
        hps_ignore(hps_error_prefix(rig->err, status, "%s: %s", what, hps_status_text(status)));
        if (rig->err->status == HPS_OK) {
            hps_ignore(hps_error_set(rig->err, status, "%s: %s", what, hps_status_text(status)));
        }
    }
    return status == HPS_OK;
}

static bool rig_expect(struct rig *rig, bool holds, const char *what, uint64_t at, uint64_t is,
                       uint64_t expected)
{
    if (!holds && !rig->failed) {
        rig->failed = true;
        hps_ignore(hps_error_set(rig->err, HPS_INTERNAL,
                                 "%s[%" PRIu64 "] is %" PRIu64 ", not %" PRIu64, what, at, is,
                                 expected));
    }
    return holds;
}

static bool rig_open(struct rig *rig, struct hps_device *device, struct hps_error *err)
{
    memset(rig, 0, sizeof(*rig));
    memset(err, 0, sizeof(*err));
    rig->device = device;
    rig->err = err;
    return rig_ok(rig, hps_stream_q_new(device, "check", false, &rig->stream, err), "stream") &&
           rig_ok(rig, hps_event_new(device, &rig->event, err), "event");
}

static bool rig_close(struct rig *rig)
{
    hps_stream_q_free(rig->stream);
    hps_event_free(rig->event);
    for (size_t i = 0; i < rig->n_buffers; i++) {
        hps_device_free(rig->device, rig->buffers[i].device);
        hps_device_host_free(rig->device, rig->buffers[i].host);
    }
    return !rig->failed;
}

static struct buffer *rig_buffer(struct rig *rig, size_t size)
{
    static struct buffer none;
    struct buffer *buffer = &rig->buffers[rig->n_buffers++];
    buffer->size = size;
    if (rig_ok(rig,
               hps_device_host_alloc(rig->device, size, &buffer->host, &buffer->mapped, rig->err),
               "host memory") &&
        rig_ok(rig, hps_device_alloc(rig->device, size, &buffer->device, rig->err), "memory")) {
        return buffer;
    }
    return &none;
}

static void *at(const struct buffer *buffer)
{
    return (void *)(uintptr_t)buffer->device;
}

static void rig_upload(struct rig *rig, const struct buffer *buffer)
{
    rig_ok(rig, hps_copy_to_device(rig->stream, buffer->device, buffer->host, buffer->size),
           "copy to the device");
}

static void rig_download(struct rig *rig, const struct buffer *buffer)
{
    rig_ok(rig, hps_copy_to_host(rig->stream, buffer->host, buffer->device, buffer->size),
           "copy to the host");
}

static bool rig_finish(struct rig *rig)
{
    return rig_ok(rig, hps_event_record(rig->event, rig->stream), "record") &&
           rig_ok(rig, hps_event_wait(rig->event), "wait") && !rig->failed;
}

static uint32_t scramble(uint32_t i)
{
    return (i + 1) * 2654435761U ^ (i << 7);
}

static struct buffer *rig_input(struct rig *rig, uint32_t n)
{
    struct buffer *input = rig_buffer(rig, n * sizeof(uint32_t));
    for (uint32_t i = 0; i < n && !rig->failed; i++) {
        ((uint32_t *)input->host)[i] = scramble(i);
    }
    if (!rig->failed) {
        rig_upload(rig, input);
    }
    return input;
}

/* ---- kernels --------------------------------------------------------------------------------- */

static bool warp_is(struct rig *rig, uint32_t i, const uint32_t *ballots, const uint32_t *any,
                    const uint32_t *shuffled, const uint64_t *wide, const uint32_t *where)
{
    uint32_t first = i / 32 * 32;
    uint32_t ballot = 0;
    uint32_t some = 0;
    for (uint32_t lane = 0; lane < 32; lane++) {
        ballot |= (scramble(first + lane) & 1) << lane;
        some |= scramble(first + lane) % 61 == 0;
    }
    uint32_t next = (i + 1) % 32;
    uint32_t places[6] = {
        i / CHECK_THREADS, i % CHECK_THREADS, i % 32, i % CHECK_THREADS / 32, i / 32, i};
    bool holds = rig_expect(rig, ballots[i] == ballot, "ballot", i, ballots[i], ballot) &&
                 rig_expect(rig, any[i] == some, "any", i, any[i], some);
    uint32_t from = scramble(first + scramble(i) % 32);
    uint64_t from_wide = (uint64_t)scramble(first + next) << 32 | next;
    holds = holds && rig_expect(rig, shuffled[i] == from, "shuffle_u32", i, shuffled[i], from) &&
            rig_expect(rig, wide[i] == from_wide, "shuffle_u64", i, wide[i], from_wide);
    for (uint32_t k = 0; k < 6 && holds; k++) {
        holds = rig_expect(rig, where[k] == places[k], "where", i * 6 + k, where[k], places[k]);
    }
    return holds;
}

static bool check_warp_calls(struct hps_device *device, struct hps_error *err)
{
    struct rig rig;
    if (rig_open(&rig, device, err)) {
        struct buffer *input = rig_input(&rig, N);
        struct buffer *ballots = rig_buffer(&rig, N * 4);
        struct buffer *any = rig_buffer(&rig, N * 4);
        struct buffer *shuffled = rig_buffer(&rig, N * 4);
        struct buffer *wide = rig_buffer(&rig, N * 8);
        struct buffer *where = rig_buffer(&rig, N * 24);
        struct check_warp_args args = {at(input), at(ballots), at(any), at(shuffled),
                                       at(wide),  at(where),   ROUNDS,  0};
        if (!rig.failed) {
            rig_ok(&rig, hps_launch(rig.stream, &check_warp, BLOCKS, &args), "launch");
            for (size_t i = 1; i < rig.n_buffers; i++) {
                rig_download(&rig, &rig.buffers[i]);
            }
        }
        bool holds = !rig.failed && rig_finish(&rig);
        for (uint32_t i = 0; i < N && holds; i++) {
            holds = warp_is(&rig, i, ballots->host, any->host, shuffled->host, wide->host,
                            (const uint32_t *)where->host + (size_t)i * 6);
        }
    }
    return rig_close(&rig);
}

static bool check_block_calls(struct hps_device *device, struct hps_error *err)
{
    struct rig rig;
    if (rig_open(&rig, device, err)) {
        struct buffer *input = rig_input(&rig, N);
        struct buffer *sums = rig_buffer(&rig, BLOCKS * 8);
        struct buffer *rotated = rig_buffer(&rig, N * 4);
        struct check_block_args args = {at(input), at(sums), at(rotated), ROUNDS, 0};
        if (!rig.failed) {
            rig_ok(&rig, hps_launch(rig.stream, &check_block, BLOCKS, &args), "launch");
            rig_download(&rig, sums);
            rig_download(&rig, rotated);
        }
        bool holds = !rig.failed && rig_finish(&rig);
        for (uint32_t block = 0; block < BLOCKS && holds; block++) {
            uint64_t sum = 0;
            for (uint32_t k = 0; k < CHECK_THREADS && holds; k++) {
                uint32_t i = block * CHECK_THREADS + k;
                uint32_t is = ((const uint32_t *)rotated->host)[i];
                uint32_t from = scramble(block * CHECK_THREADS + (k + 33) % CHECK_THREADS);
                sum += scramble(i);
                holds = rig_expect(&rig, is == from, "rotated", i, is, from);
            }
            uint64_t is = ((const uint64_t *)sums->host)[block];
            holds = holds && rig_expect(&rig, is == sum, "sum", block, is, sum);
        }
    }
    return rig_close(&rig);
}

/* From the host's mapped memory, and from the device's. */
static bool check_memory_from(struct hps_device *device, bool mapped, struct hps_error *err)
{
    enum { QUADS = 3001 };
    struct rig rig;
    if (rig_open(&rig, device, err)) {
        struct buffer *input = rig_input(&rig, QUADS * 4);
        struct buffer *quads = rig_buffer(&rig, QUADS * 16);
        struct buffer *words = rig_buffer(&rig, QUADS * 16);
        struct buffer *doubles = rig_buffer(&rig, QUADS * 16);
        const void *from = mapped ? (const void *)(uintptr_t)input->mapped : at(input);
        void *to = mapped ? (void *)(uintptr_t)quads->mapped : at(quads);
        struct check_memory_args args = {from, to, at(words), at(doubles), QUADS, 0};
        if (!rig.failed) {
            rig_ok(&rig, hps_launch(rig.stream, &check_memory, 3, &args), "launch");
            rig_download(&rig, words);
            rig_download(&rig, doubles);
            if (!mapped) {
                rig_download(&rig, quads);
            }
        }
        bool holds = !rig.failed && rig_finish(&rig);
        for (size_t i = 1; i < rig.n_buffers && holds; i++) {
            holds = rig_expect(&rig, memcmp(rig.buffers[i].host, input->host, QUADS * 16) == 0,
                               "copy", i, 1, 0);
        }
    }
    return rig_close(&rig);
}

static bool check_memory_device(struct hps_device *device, struct hps_error *err)
{
    return check_memory_from(device, false, err);
}

static bool check_memory_mapped(struct hps_device *device, struct hps_error *err)
{
    return check_memory_from(device, true, err);
}

static uint64_t mul_high(uint64_t a, uint64_t b)
{
    uint64_t low = (a & UINT32_MAX) * (b & UINT32_MAX);
    uint64_t mid = (a >> 32) * (b & UINT32_MAX) + (low >> 32);
    uint64_t mid_2 = (a & UINT32_MAX) * (b >> 32) + (mid & UINT32_MAX);
    return (a >> 32) * (b >> 32) + (mid >> 32) + (mid_2 >> 32);
}

static void atomics_compare(struct rig *rig, const uint32_t *words, const uint64_t *doubles,
                            const uint8_t *bytes)
{
    uint64_t sum = 0;
    uint32_t high = 0;
    uint32_t bits = 0;
    for (uint32_t i = 0; i < N; i++) {
        sum += i;
        high += (uint32_t)mul_high(UINT64_MAX - i, (uint64_t)i << 32);
        for (uint32_t rest = i + 1; rest != 0; rest &= rest - 1) {
            bits++;
        }
        for (uint32_t rest = i + 1; (rest & 1) == 0; rest >>= 1) {
            bits++;
        }
    }
    const uint32_t expected[8] = {(uint32_t)sum, UINT32_MAX, words[2], (uint32_t)sum,
                                  BLOCKS,        high,       bits,     0U - words[2]};
    for (uint32_t i = 0; i < 8; i++) {
        rig_expect(rig, words[i] == expected[i], "words", i, words[i], expected[i]);
    }
    rig_expect(rig, doubles[0] == sum << 20, "doubles", 0, doubles[0], sum << 20);
    rig_expect(rig, doubles[1] == sum, "doubles", 1, doubles[1], sum);
    for (uint32_t i = 0; i < 256; i++) {
        rig_expect(rig, bytes[i] == 0x80, "bytes", i, bytes[i], 0x80);
    }
}

/* The flag alone must make earlier stores visible, so the event is polled rarely. It tells that the
 * kernel failed, or ended without raising the flag. */
static void await_flag(struct rig *rig, const uint32_t *flag, uint32_t value)
{
    enum { LOADS = 1 << 20 };
    hps_status status = HPS_AGAIN;

    if (rig->failed || !rig_ok(rig, hps_event_record(rig->event, rig->stream), "record")) {
        return;
    }
    for (uint32_t n = 1; status == HPS_AGAIN && hps_flag_load(flag) != value; n++) {
        status = n % LOADS == 0 ? hps_event_done(rig->event) : HPS_AGAIN;
    }
    if (status == HPS_AGAIN || rig_ok(rig, status, "flag")) {
        rig_expect(rig, hps_flag_load(flag) == value, "flag", 0, hps_flag_load(flag), value);
    }
}

static bool check_atomics_and_flag(struct hps_device *device, struct hps_error *err)
{
    struct rig rig;
    if (rig_open(&rig, device, err)) {
        struct buffer *words = rig_buffer(&rig, 8 * 4);
        struct buffer *doubles = rig_buffer(&rig, 2 * 8);
        struct buffer *bytes = rig_buffer(&rig, 256);
        struct buffer *rows = rig_buffer(&rig, BLOCKS * 8);
        struct buffer *total = rig_buffer(&rig, 8);
        struct buffer *flag = rig_buffer(&rig, 4);
        for (size_t i = 0; i < rig.n_buffers && !rig.failed; i++) {
            rig_ok(&rig,
                   hps_fill_on_device(rig.stream, rig.buffers[i].device, 0, rig.buffers[i].size),
                   "fill");
        }
        struct check_atomic_args args = {at(words),
                                         at(doubles),
                                         at(bytes),
                                         at(rows),
                                         (void *)(uintptr_t)total->mapped,
                                         (void *)(uintptr_t)flag->mapped,
                                         77,
                                         0};
        if (!rig.failed) {
            rig_ok(&rig, hps_launch(rig.stream, &check_atomic, BLOCKS, &args), "launch");
        }
        await_flag(&rig, flag->host, 77);
        if (!rig.failed) {
            uint64_t is = *(const uint64_t *)total->host;
            rig_expect(&rig, is == BLOCKS * (BLOCKS + 1) / 2, "total", 0, is,
                       BLOCKS * (BLOCKS + 1) / 2);
            rig_download(&rig, words);
            rig_download(&rig, doubles);
            rig_download(&rig, bytes);
        }
        if (!rig.failed && rig_finish(&rig)) {
            atomics_compare(&rig, words->host, doubles->host, bytes->host);
        }
    }
    return rig_close(&rig);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Two streams pass one buffer to and fro, ordered by events alone. */
static bool check_event_order(struct hps_device *device, struct hps_error *err)
{
    enum { PASSES = 40, SIZE = 4096 };
    struct rig rig;
    struct hps_stream_q *other = NULL;
    struct hps_event *event = NULL;
    if (rig_open(&rig, device, err) &&
        rig_ok(&rig, hps_stream_q_new(device, "other", true, &other, err), "stream") &&
        rig_ok(&rig, hps_event_new(device, &event, err), "event")) {
        struct buffer *passed = rig_buffer(&rig, SIZE);
        struct buffer *out = rig_buffer(&rig, SIZE * PASSES);
        for (uint32_t i = 0; i < PASSES && !rig.failed; i++) {
            uint8_t *host = (uint8_t *)out->host + (size_t)i * SIZE;
            rig_ok(&rig, hps_fill_on_device(rig.stream, passed->device, (uint8_t)(i + 1), SIZE),
                   "fill");
            rig_ok(&rig, hps_event_record(rig.event, rig.stream), "record");
            rig_ok(&rig, hps_stream_q_wait(other, rig.event), "wait");
            rig_ok(&rig, hps_copy_to_host(other, host, passed->device, SIZE), "copy");
            rig_ok(&rig, hps_event_record(event, other), "record");
            rig_ok(&rig, hps_stream_q_wait(rig.stream, event), "wait");
        }
        bool holds = !rig.failed && rig_finish(&rig);
        for (uint32_t i = 0; i < PASSES * SIZE && holds; i++) {
            uint8_t is = ((const uint8_t *)out->host)[i];
            holds = rig_expect(&rig, is == i / SIZE + 1, "passed", i, is, i / SIZE + 1);
        }
    }
    hps_stream_q_free(other);
    hps_event_free(event);
    return rig_close(&rig);
}

/* Registered memory is as good as allocated memory, at any length and offset. */
static bool check_registered_copies(struct hps_device *device, struct hps_error *err)
{
    enum { SIZE = 8192, PIECES = 100 };
    struct rig rig;
    uint8_t *host = hps_alloc_aligned(4096, 2 * SIZE);
    hps_devptr mapped = 0;
    if (rig_open(&rig, device, err) &&
        rig_ok(&rig, host != NULL ? HPS_OK : HPS_NO_MEMORY, "memory") &&
        rig_ok(&rig, hps_device_host_register(device, host, 2 * SIZE, &mapped, err), "register")) {
        struct buffer *buffer = rig_buffer(&rig, SIZE);
        struct buffer *second = rig_buffer(&rig, SIZE);
        for (uint32_t i = 0; i < SIZE; i++) {
            host[i] = (uint8_t)scramble(i);
            host[SIZE + i] = 0;
        }
        for (uint32_t i = 0; i < PIECES && !rig.failed; i++) {
            size_t from = (size_t)i * SIZE / PIECES;
            size_t size = (size_t)(i + 1) * SIZE / PIECES - from;
            rig_ok(&rig, hps_copy_to_device(rig.stream, buffer->device + from, host + from, size),
                   "copy to the device");
            rig_ok(
                &rig,
                hps_copy_on_device(rig.stream, second->device + from, buffer->device + from, size),
                "copy on the device");
            rig_ok(&rig,
                   hps_copy_to_host(rig.stream, host + SIZE + from, second->device + from, size),
                   "copy to the host");
        }
        if (rig_finish(&rig)) {
            rig_expect(&rig, memcmp(host, host + SIZE, SIZE) == 0, "copied", 0, 1, 0);
        }
    }
    if (mapped != 0) {
        hps_device_host_unregister(device, host);
    }
    bool holds = rig_close(&rig);
    hps_free_aligned(host);
    return holds;
}

const struct device_check device_checks[] = {
    {"ballot, any, shuffles and indices", check_warp_calls},
    {"barriers and shared memory", check_block_calls},
    {"loads and stores, memory of the device", check_memory_device},
    {"loads and stores, mapped memory of the host", check_memory_mapped},
    {"atomics, arithmetic, a flag raised by the last block", check_atomics_and_flag},
    {"events order two streams", check_event_order},
    {"copies from and to registered memory", check_registered_copies},
};
const size_t n_device_checks = sizeof(device_checks) / sizeof(device_checks[0]);
