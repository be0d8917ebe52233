/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of net/http2_filter: what passes is what was sent without the resets of streams that were
 * never begun, wherever the reads are cut.
 */
#include "net/http2_filter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DATA, HEADERS, PRIORITY, RESET, BYTES_MAX = 64 * 1024 };

static unsigned seed = 7;

struct stream {
    uint8_t sent[BYTES_MAX], expected[BYTES_MAX], got[BYTES_MAX];
    size_t n_sent, n_expected, n_got;
    uint32_t n_dropped;
};

static void add(struct stream *stream, const void *data, size_t size, bool passes)
{
    memcpy(stream->sent + stream->n_sent, data, size);
    stream->n_sent += size;
    if (passes) {
        memcpy(stream->expected + stream->n_expected, data, size);
        stream->n_expected += size;
    }
}

static void add_frame(struct stream *stream, uint8_t type, uint32_t id, size_t size, bool passes)
{
    uint8_t frame[9 + 300];
    const uint8_t head[9] = {
        0,          (uint8_t)(size >> 8), (uint8_t)size,       type,
        0,          (uint8_t)(id >> 24),  (uint8_t)(id >> 16), (uint8_t)(id >> 8),
        (uint8_t)id};
    memcpy(frame, head, sizeof(head));
    memset(frame + 9, RESET, size); /* a payload that looks like heads */
    add(stream, frame, 9 + size, passes);
    stream->n_dropped += !passes;
}

static void fill(struct stream *stream)
{
    uint32_t last_id = 0;
    add(stream, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24, true);
    while (stream->n_sent < BYTES_MAX - 1000) {
        uint32_t id = last_id + 2 * (uint32_t)(rand_r(&seed) % 3) + 1 - last_id % 2;
        switch (rand_r(&seed) % 6) {
        case 0:
            add_frame(stream, HEADERS, id, (size_t)rand_r(&seed) % 300, true);
            last_id = id > last_id ? id : last_id;
            break;
        case 1:
            add_frame(stream, RESET, id, 4, id <= last_id);
            break;
        case 2:
            add_frame(stream, RESET, id, 3, true); /* malformed: not ours to judge */
            break;
        case 3:
            add_frame(stream, RESET, (uint32_t)rand_r(&seed) % 1000 * 2, 4,
                      true); /* never a client's */
            break;
        default:
            add_frame(stream, DATA, id, (size_t)rand_r(&seed) % 300, true);
            break;
        }
    }
}

static void run(struct stream *stream, size_t step_max)
{
    struct hps_http2_filter filter;
    const uint8_t *out;
    size_t out_size;

    hps_http2_filter_init(&filter);
    stream->n_got = 0;
    for (size_t at = 0; at < stream->n_sent;) {
        size_t size = 1 + (size_t)rand_r(&seed) % step_max;
        size = size < stream->n_sent - at ? size : stream->n_sent - at;
        const uint8_t *data = stream->sent + at;
        at += size;
        while (hps_http2_filter_next(&filter, &data, &size, &out, &out_size)) {
            memcpy(stream->got + stream->n_got, out, out_size);
            stream->n_got += out_size;
        }
        assert_int_equal(size, 0);
    }
    assert_int_equal(stream->n_got, stream->n_expected);
    assert_memory_equal(stream->got, stream->expected, stream->n_expected);
    assert_int_equal(filter.n_dropped, stream->n_dropped);
}

static void test_frames_when_reads_are_cut_anywhere_then_only_such_resets_are_missing(void **state)
{
    (void)state;
    static struct stream stream;
    static const size_t steps[] = {1, 2, 12, 14, 100, 5000, BYTES_MAX};
    print_message("seed %u\n", seed);
    for (unsigned round = 0; round < 5; round++) {
        stream = (struct stream){0};
        fill(&stream);
        assert_true(stream.n_dropped > 0);
        for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
            run(&stream, steps[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_when_reads_are_cut_anywhere_then_only_such_resets_are_missing),
    };
    return cmocka_run_group_tests_name("http2_filter", tests, NULL, NULL);
}
