/* SPDX-License-Identifier: Apache-2.0
 *
 * What makes and measures load: the Zipf sampler and the latency histogram; and JSON of messages.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "client/hist.h"
#include "client/message.h"
#include "client/zipf.h"
#include "hps/v1/admin.pb-c.h"
#include "inference/grpc_service.pb-c.h"
#include "proto/json.h"

enum { N = 1000, DRAWS = 400000 };

/* Frequencies against the exact distribution, by chi-square over ranks with enough draws. */
static void check_zipf(double alpha)
{
    static uint64_t seen[N + 1];
    struct hps_random random = {42};
    struct hps_zipf zipf;
    double all = 0, chi = 0;
    unsigned n_cells = 0;

    memset(seen, 0, sizeof(seen));
    hps_zipf_init(&zipf, N, alpha, 0);
    for (int i = 0; i < DRAWS; i++) {
        uint64_t rank = hps_zipf_rank(&zipf, &random);
        assert_in_range(rank, 1, N);
        seen[rank]++;
    }
    for (int k = 1; k <= N; k++) {
        all += pow(k, -alpha);
    }
    for (int k = 1; k <= N; k++) {
        double expected = DRAWS * pow(k, -alpha) / all;
        if (expected >= 10) {
            double off = (double)seen[k] - expected;
            chi += off * off / expected;
            n_cells++;
        }
    }
    /* Five standard deviations of chi-square; the draws are the same every time. */
    assert_true(chi < n_cells + 5 * sqrt(2.0 * n_cells));
}

static void test_zipf_when_any_alpha_then_exact_distribution(void **state)
{
    (void)state;
    check_zipf(0);
    check_zipf(0.5);
    check_zipf(0.99);
    check_zipf(1.0);
    check_zipf(1.3);
    check_zipf(3.0);
}

static void test_zipf_when_heavy_then_that_share_is_rank_one(void **state)
{
    struct hps_random random = {7};
    struct hps_zipf zipf;
    unsigned n = 0;

    (void)state;
    hps_zipf_init(&zipf, UINT64_C(1) << 40, 0, 0.25);
    for (int i = 0; i < 100000; i++) {
        n += hps_zipf_rank(&zipf, &random) == 1;
    }
    assert_in_range(n, 24000, 26000);
}

static void test_zipf_when_several_are_heavy_then_they_share_evenly(void **state)
{
    struct hps_random random = {7};
    struct hps_zipf zipf;
    unsigned n[5] = {0};

    (void)state;
    hps_zipf_init(&zipf, UINT64_C(1) << 40, 0, 0.8);
    zipf.n_heavy = 4;
    for (int i = 0; i < 100000; i++) {
        uint64_t rank = hps_zipf_rank(&zipf, &random);
        n[rank <= 4 ? rank : 0]++;
    }
    for (int i = 0; i <= 4; i++) {
        assert_in_range(n[i], 19000, 21000);
    }
}

static void test_zipf_row_when_all_ranks_then_every_row_once(void **state)
{
    static const uint64_t sizes[] = {1, 2, 3, 4, 7, 10, 16, 97, 1000, 1024};

    (void)state;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        bool seen[1024] = {false};
        struct hps_zipf zipf;
        hps_zipf_init(&zipf, sizes[s], 1, 0);
        for (uint64_t rank = 1; rank <= sizes[s]; rank++) {
            uint64_t row = hps_zipf_row(&zipf, rank);
            assert_true(row < sizes[s]);
            assert_false(seen[row]);
            seen[row] = true;
        }
    }
}

static void test_hist_when_values_known_then_quantiles_within_precision(void **state)
{
    struct hps_hist *hist = hps_calloc(1, sizeof(*hist));
    struct hps_hist *other = hps_calloc(1, sizeof(*other));

    (void)state;
    assert_non_null(hist);
    assert_non_null(other);
    assert_int_equal(hps_hist_quantile(hist, 0.5), 0);
    for (uint64_t i = 1; i <= 50000; i++) {
        hps_hist_add(hist, i);
        hps_hist_add(other, 50000 + i);
    }
    hps_hist_merge(hist, other);
    assert_int_equal(hist->n, 100000);
    assert_int_equal(hist->max, 100000);
    assert_in_range(hps_hist_quantile(hist, 0.5), 50000, 50400);
    assert_in_range(hps_hist_quantile(hist, 0.99), 99000, 99800);
    assert_int_equal(hps_hist_quantile(hist, 1), 100000);
    hps_hist_add(hist, UINT64_MAX);
    hps_hist_add(hist, 0);
    assert_true(hps_hist_quantile(hist, 1) == UINT64_MAX);
    hps_free(other);
    hps_free(hist);
}

static void test_json_when_message_then_all_fields_escaped(void **state)
{
    Hps__V1__TierAnswer tier = HPS__V1__TIER_ANSWER__INIT;
    Hps__V1__TierAnswer *tiers[] = {&tier};
    Hps__V1__ExplainKeyResponse message = HPS__V1__EXPLAIN_KEY_RESPONSE__INIT;
    uint8_t row[] = {0xff, 0x00, 0x10, 0x41};
    struct hps_buf buf;

    (void)state;
    tier.tier = (char *)(uintptr_t) "a\"b\\\n\x1b\xff\xc3\xa9";
    tier.found = 1;
    tier.duration_us = UINT64_MAX;
    tier.row = (ProtobufCBinaryData){sizeof(row), row};
    message.version = -3;
    message.tiers = tiers;
    message.n_tiers = 1;
    message.state = HPS__V1__KEY_STATE__KEY_STATE_FOUND;
    hps_buf_init(&buf, 4096);
    hps_message_json(&message.base, &buf);
    assert_int_equal(buf.status, HPS_OK);
    assert_int_equal(hps_buf_append(&buf, "", 1), HPS_OK);
    assert_string_equal(
        (const char *)buf.data,
        "{\"version\":-3,\"tiers\":[{\"tier\":\"a\\\"b\\\\\\u000a\\u001b"
        "\xEF\xBF\xBD\xc3\xa9\",\"found\":true,\"duration_us\":18446744073709551615,"
        "\"error\":\"\",\"row\":\"/wAQQQ==\"}],\"state\":\"KEY_STATE_FOUND\"}");
    hps_buf_fini(&buf);
}

static void test_json_when_it_has_maps_then_objects_and_none_of_empty_ones(void **state)
{
    typedef Inference__ModelMetadataResponse__PropertiesEntry entry_message;
    entry_message entries[2] = {INFERENCE__MODEL_METADATA_RESPONSE__PROPERTIES_ENTRY__INIT,
                                INFERENCE__MODEL_METADATA_RESPONSE__PROPERTIES_ENTRY__INIT};
    entry_message *pointers[2] = {&entries[0], &entries[1]};
    Inference__ModelMetadataResponse message = INFERENCE__MODEL_METADATA_RESPONSE__INIT;
    struct hps_buf buf;

    (void)state;
    entries[0].key = (char *)(uintptr_t) "a\"";
    entries[0].value = (char *)(uintptr_t) "1";
    entries[1].key = (char *)(uintptr_t) "b";
    message.name = (char *)(uintptr_t) "m";
    for (unsigned n = 0; n <= 2; n++) {
        static const char *const wanted[] = {"", ",\"properties\":{\"a\\\"\":\"1\"}",
                                             ",\"properties\":{\"a\\\"\":\"1\",\"b\":\"\"}"};
        char text[256];
        message.properties = pointers;
        message.n_properties = n;
        (void)snprintf(text, sizeof(text),
                       "{\"name\":\"m\",\"versions\":[],\"platform\":\"\",\"inputs\":[],"
                       "\"outputs\":[]%s}",
                       wanted[n]);
        hps_buf_init(&buf, 4096);
        hps_message_json(&message.base, &buf);
        assert_int_equal(buf.status, HPS_OK);
        assert_int_equal(hps_buf_append(&buf, "", 1), HPS_OK);
        assert_string_equal((const char *)buf.data, text);
        hps_buf_fini(&buf);
    }
}

static void test_json_when_submessage_is_absent_then_left_out(void **state)
{
    Hps__V1__LoadProgress message = HPS__V1__LOAD_PROGRESS__INIT;
    struct hps_buf buf;

    (void)state;
    hps_buf_init(&buf, 4096);
    hps_message_json(&message.base, &buf);
    assert_int_equal(buf.status, HPS_OK);
    assert_int_equal(hps_buf_append(&buf, "", 1), HPS_OK);
    assert_null(strstr((const char *)buf.data, "plan"));
    assert_non_null(strstr((const char *)buf.data, "\"done\":false"));
    hps_buf_fini(&buf);
    hps_buf_init(&buf, 10);
    hps_message_json(&message.base, &buf);
    assert_int_equal(buf.status, HPS_EXHAUSTED);
    hps_buf_fini(&buf);
}

static void test_plain_when_strings_would_act_on_a_terminal_then_escaped_at_any_depth(void **state)
{
    static char *reasons[] = {"fine", "\x1b[2J"};
    Hps__V1__TierStatus tier = HPS__V1__TIER_STATUS__INIT;
    Hps__V1__TierStatus *tiers[] = {&tier};
    Hps__V1__GetStatusResponse sent = HPS__V1__GET_STATUS_RESPONSE__INIT;
    ProtobufCMessage *message = NULL;
    struct hps_error err = {0};
    struct hps_buf buf;

    (void)state;
    tier.tier = (char *)(uintptr_t) "r\xe2\x80\xaesider";
    sent.tiers = tiers;
    sent.n_tiers = 1;
    sent.not_ready_reasons = reasons;
    sent.n_not_ready_reasons = 2;
    hps_buf_init(&buf, 4096);
    assert_int_equal(hps_message_encode(&sent.base, &buf, &err), HPS_OK);
    assert_int_equal(hps_message_decode(sent.base.descriptor, buf.data, buf.size, &message, &err),
                     HPS_OK);
    assert_int_equal(hps_message_plain(message), HPS_OK);
    const Hps__V1__GetStatusResponse *got = (const Hps__V1__GetStatusResponse *)message;
    assert_string_equal(got->tiers[0]->tier, "r\\u202esider");
    assert_string_equal(got->not_ready_reasons[0], "fine");
    assert_string_equal(got->not_ready_reasons[1], "\\u001b[2J");
    assert_string_equal(got->version, "");
    hps_message_free(message);
    hps_buf_fini(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zipf_when_any_alpha_then_exact_distribution),
        cmocka_unit_test(test_zipf_when_heavy_then_that_share_is_rank_one),
        cmocka_unit_test(test_zipf_when_several_are_heavy_then_they_share_evenly),
        cmocka_unit_test(test_zipf_row_when_all_ranks_then_every_row_once),
        cmocka_unit_test(test_hist_when_values_known_then_quantiles_within_precision),
        cmocka_unit_test(test_plain_when_strings_would_act_on_a_terminal_then_escaped_at_any_depth),
        cmocka_unit_test(test_json_when_message_then_all_fields_escaped),
        cmocka_unit_test(test_json_when_it_has_maps_then_objects_and_none_of_empty_ones),
        cmocka_unit_test(test_json_when_submessage_is_absent_then_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
