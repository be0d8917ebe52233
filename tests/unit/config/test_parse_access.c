/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "config/access.h"
#include "tests/lib/fault_heap.h"

#define DIGEST "9F86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
#define OTHER  "0000000000000000000000000000000000000000000000000000000000000001"

static const char whole[] =
    "{ // who may do what\n"
    " \"rules\": [\n"
    "  {\"who\": [\"cert:Trainer.Example\", \"cert:spiffe://Ads/x\", \"user:root\", \"group:7\"],\n"
    "   \"may\": [\"load\", \"read\"], \"models\": [\"dlrm\", \"ads-*\"]},\n"
    "  {\"who\": [\"any\", \"token:ci\"], \"may\": [\"lookup\"], \"requests_per_s\": 100,\n"
    "   \"reply_bytes\": \"64MiB\"}],\n"
    " \"tokens\": [{\"name\": \"ci\", \"sha256\": \"" DIGEST
    "\", \"expires\": \"2027-01-31T00:00:00Z\"}]}";

static void test_file_when_whole_then_every_field_is_read(void **state)
{
    struct hps_access_file file = {0};
    struct hps_error err = {0};

    (void)state;
    assert_int_equal(hps_access_file_parse(whole, strlen(whole), "f", &file, &err), HPS_OK);
    assert_int_equal(file.n_rules, 2);
    const struct hps_access_rule *rule = &file.rules[0];
    assert_int_equal(rule->n_who, 4);
    assert_string_equal(rule->who[0].name, "trainer.example"); /* DNS knows no case */
    assert_string_equal(rule->who[1].name, "spiffe://Ads/x");
    assert_int_equal(rule->who[2].kind, HPS_ACCESS_USER);
    assert_int_equal(rule->who[2].id, 0);
    assert_int_equal(rule->who[3].kind, HPS_ACCESS_GROUP);
    assert_int_equal(rule->who[3].id, 7);
    assert_int_equal(rule->may, HPS_ROLE_LOAD | HPS_ROLE_READ);
    assert_int_equal(rule->models.n, 2);
    assert_int_equal(rule->requests_per_s, 0);
    rule = &file.rules[1];
    assert_int_equal(rule->who[0].kind, HPS_ACCESS_ANY);
    assert_int_equal(rule->who[1].kind, HPS_ACCESS_TOKEN);
    assert_int_equal(rule->models.n, 0);
    assert_int_equal(rule->requests_per_s, 100);
    assert_int_equal(rule->reply_bytes, 64 << 20);
    assert_int_equal(file.n_tokens, 1);
    assert_int_equal(file.tokens[0].sha256[0], 0x9f);
    assert_int_equal(file.tokens[0].sha256[31], 0x08);
    assert_int_equal(file.tokens[0].expires_unix_s, 1801353600);
    hps_access_file_fini(&file);
    hps_access_file_fini(&file);
}

static void test_sample_when_read_then_good(void **state)
{
    struct hps_access_file file = {0};
    struct hps_error err = {0};

    (void)state;
    if (hps_access_file_read(HPS_SOURCE_DIR "/config/samples/access.json", &file, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    assert_true(file.n_rules > 2 && file.n_tokens > 1);
    hps_access_file_fini(&file);
    assert_int_equal(hps_access_file_read("/nonexistent/roles", &file, &err), HPS_NOT_FOUND);
}

#define RULE(text) \
    "{\"rules\":[{" text "}],\"tokens\":[{\"name\":\"ci\",\"sha256\":\"" DIGEST "\"}]}"
#define TOKEN(text) "{\"rules\":[{\"who\":[\"any\"],\"may\":[\"read\"]}],\"tokens\":[{" text "}]}"
static const struct {
    const char *text, *place, *reason;
} wrong[] = {
    {"[]", "", "an object"},
    {"{}", "", "got no \"rules\""},
    {"{\"rules\":[]}", "rules", "1 to 4096"},
    {"{\"rules\":{}}", "rules", "1 to 4096"},
    {"{\"rulez\":[]}", "rulez", "did you mean \"rules\""},
    {RULE("\"may\":[\"read\"]"), "rules[0]", "got no \"who\""},
    {RULE("\"who\":[\"any\"]"), "rules[0]", "got no \"may\""},
    {RULE("\"who\":[],\"may\":[\"read\"]"), "rules[0].who", "1 to 4096"},
    {RULE("\"who\":[\"some\"],\"may\":[\"read\"]"), "rules[0].who[0]", "cert:NAME"},
    {RULE("\"who\":[\"cert:\"],\"may\":[\"read\"]"), "rules[0].who[0]", "1 to 255"},
    {RULE("\"who\":[\"user:no-such-user-here\"],\"may\":[\"read\"]"), "rules[0].who[0]",
     "of this host"},
    {RULE("\"who\":[\"user:4294967295\"],\"may\":[\"read\"]"), "rules[0].who[0]", "a user"},
    {RULE("\"who\":[\"token:cj\"],\"may\":[\"read\"]"), "rules[0].who[0]", "did you mean \"ci\""},
    {RULE("\"who\":[\"any\"],\"may\":[\"write\"]"), "rules[0].may[0]", "\"lookup\""},
    {RULE("\"who\":[\"any\"],\"may\":[\"read\"],\"models\":[]"), "rules[0].models", "1 to"},
    {RULE("\"who\":[\"any\"],\"may\":[\"read\"],\"models\":[7]"), "rules[0].models[0]", "*"},
    {RULE("\"who\":[\"any\"],\"may\":[\"read\"],\"model\":[\"m\"]"), "rules[0].model",
     "\"models\""},
    {RULE("\"who\":[\"any\"],\"may\":[\"read\"],\"requests_per_s\":-1"), "rules[0].requests_per_s",
     "an integer"},
    {RULE("\"who\":[\"any\"],\"may\":[\"read\"],\"reply_bytes\":\"much\""), "rules[0].reply_bytes",
     "64MiB"},
    {RULE("\"who\":[\"any\"],\"may\":[\"admin\"],\"reply_bytes\":1"), "rules[0].reply_bytes",
     "has no effect"},
    {TOKEN("\"name\":\"a b\",\"sha256\":\"" DIGEST "\""), "tokens[0].name", "1 to 64"},
    {TOKEN("\"name\":\"a\",\"sha256\":\"secret\""), "tokens[0].sha256", "64 hexadecimal"},
    {TOKEN("\"name\":\"secret=\",\"sha256\":\"" DIGEST "\""), "tokens[0].name", "1 to 64"},
    {"{\"rules\":[],\"tokens\":\"secret\"}", "tokens", "a list"},
    {"{\"rules\":[],\"tokens\":[\"secret\"]}", "tokens[0]", "an object"},
    {"{\"rules\":[],\"tokens\":[\"a\" \"secret\"]}", "tokens[0]", "']' expected"},
    {TOKEN("\"name\":\"a\",\"sha256\":\"" DIGEST "\",\"expires\":\"2027-02-30T00:00:00Z\""),
     "tokens[0].expires", "UTC"},
    {TOKEN("\"name\":\"a\",\"sha256\":\"" DIGEST "\",\"expires\":\"tomorrow\""),
     "tokens[0].expires", "UTC"},
    {TOKEN("\"name\":\"a\",\"sha256\":\"" DIGEST "\",\"expires\":\"+999-01-31T00:00:00Z\""),
     "tokens[0].expires", "UTC"},
    {TOKEN("\"name\":\"a\",\"sha256\":\"" DIGEST "\",\"expires\":\"2027-+1-31T00:00:00Z\""),
     "tokens[0].expires", "UTC"},
    {TOKEN("\"name\":\"a\",\"sha256\":\"" DIGEST "\",\"expires\":\"2027-01-31T-0:00:00Z\""),
     "tokens[0].expires", "UTC"},
    {TOKEN("\"name\":\"a\",\"sha256\":\"" DIGEST "\",\"expires\":\"2027-01-31T00: 0:00Z\""),
     "tokens[0].expires", "UTC"},
    {TOKEN("\"name\":\"a\",\"sha256\":\"" DIGEST "\",\"expires\":\"2027-01-31T00:00:00Zz\""),
     "tokens[0].expires", "UTC"},
    {TOKEN("\"name\":\"a\",\"sha256\":\"" DIGEST "\"},{\"name\":\"b\",\"sha256\":\"" DIGEST "\""),
     "tokens[1]", "of token \"a\" again"},
    {TOKEN("\"name\":\"a\",\"sha256\":\"" DIGEST "\"},{\"name\":\"a\",\"sha256\":\"" OTHER "\""),
     "tokens[1]", "the name \"a\" a second time"},
};

static void test_file_when_wrong_then_error_names_the_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct hps_access_file file = {0};
        struct hps_error err = {0};
        char place[64];

        assert_int_equal(
            hps_access_file_parse(wrong[i].text, strlen(wrong[i].text), "f", &file, &err),
            HPS_INVALID);
        snprintf(place, sizeof(place), "f:1: %s", wrong[i].place);
        if (strstr(err.text, place) == NULL || strstr(err.text, wrong[i].reason) == NULL) {
            fail_msg("case %zu: %s", i, err.text);
        }
        assert_null(strstr(err.text, "secret")); /* what stands there may be the token itself */
        assert_null(file.rules);
    }
}

/* If each name were compared with each token, this would take minutes. */
static void test_file_when_large_then_no_name_is_compared_with_all_tokens(void **state)
{
    enum { N_TOKENS = 4000, N_RULES = 15 };
    struct hps_access_file file = {0};
    struct hps_error err = {0};
    struct hps_buf text;

    (void)state;
    hps_buf_init(&text, 4 << 20);
    for (unsigned rule = 0; rule < N_RULES; rule++) {
        assert_int_equal(hps_buf_printf(&text, "%s{\"may\":[\"read\"],\"who\":[\"any\"",
                                        rule == 0 ? "{\"rules\":[" : ","),
                         HPS_OK);
        for (unsigned i = 0; i < N_TOKENS; i++) {
            assert_int_equal(hps_buf_printf(&text, ",\"token:a-service-with-a-long-name-%u\"", i),
                             HPS_OK);
        }
        assert_int_equal(hps_buf_printf(&text, "]}"), HPS_OK);
    }
    for (unsigned i = 0; i < N_TOKENS; i++) {
        assert_int_equal(
            hps_buf_printf(&text,
                           "%s{\"name\":\"a-service-with-a-long-name-%u\",\"sha256\":\"%064x\"}",
                           i == 0 ? "],\"tokens\":[" : ",", i, i),
            HPS_OK);
    }
    assert_int_equal(hps_buf_printf(&text, "]}"), HPS_OK);
    assert_int_equal(hps_access_file_parse((const char *)text.data, text.size, "f", &file, &err),
                     HPS_OK);
    assert_int_equal(file.n_tokens, N_TOKENS);
    assert_int_equal(file.rules[N_RULES - 1].n_who, N_TOKENS + 1);
    hps_access_file_fini(&file);
    hps_buf_fini(&text);
}

static void parse_whole(void *ctx)
{
    struct hps_access_file file = {0};
    struct hps_error err = {0};

    (void)ctx;
    hps_status status = hps_access_file_parse(whole, strlen(whole), "f", &file, &err);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
    hps_access_file_fini(&file);
}

static void test_file_when_memory_fails_anywhere_then_error_and_no_leak(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(parse_whole, NULL) > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_when_whole_then_every_field_is_read),
        cmocka_unit_test(test_sample_when_read_then_good),
        cmocka_unit_test(test_file_when_wrong_then_error_names_the_place),
        cmocka_unit_test(test_file_when_large_then_no_name_is_compared_with_all_tokens),
        cmocka_unit_test(test_file_when_memory_fails_anywhere_then_error_and_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
