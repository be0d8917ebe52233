/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/access/rules.h"
#include "tests/lib/tmpdir.h"

#define DIGEST_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define DIGEST_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static struct hps_access_rules *rules_of(const char *text)
{
    struct hps_tmpdir dir;
    struct hps_access_rules *rules = NULL;
    struct hps_error err = {0};

    hps_tmpdir_open(&dir);
    if (text != NULL) {
        hps_tmpdir_write(&dir, "roles", text, strlen(text));
    }
    const struct hps_access_source source = {
        .file = text != NULL ? hps_tmpdir_join(&dir, "roles") : "", .admin_token_file = ""};
    if (hps_access_rules_read(&source, &rules, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    hps_tmpdir_close(&dir);
    return rules;
}

static struct hps_limits *limits_of_none(void)
{
    const struct hps_limits_options options = {.max = {UINT64_MAX / 4, UINT64_MAX / 4}};

    return hps_limits_new(&options, NULL);
}

static struct hps_access_grant *grant_of(struct hps_limits *accounts,
                                         struct hps_access_rules *rules,
                                         const struct access_identity *identity,
                                         enum access_token kind, size_t token)
{
    struct hps_access_grant *grant = NULL;
    const uint8_t digest[32] = {0};

    assert_int_equal(access_grant_new(NULL, accounts, rules, identity, kind, token,
                                      kind == ACCESS_TOKEN_NONE ? NULL : digest, &grant),
                     HPS_OK);
    return grant;
}

static uint32_t roles_of(struct hps_access_rules *rules, const struct access_identity *identity)
{
    struct hps_limits *accounts = limits_of_none();
    struct hps_access_grant *grant = grant_of(accounts, rules, identity, ACCESS_TOKEN_NONE, 0);
    uint32_t roles = grant->roles;

    hps_access_grant_unref(grant);
    hps_limits_free(accounts);
    return roles;
}

static void test_grant_when_there_is_no_file_then_lookups_for_all_and_admin_for_few(void **state)
{
    struct hps_access_rules *rules = rules_of(NULL);
    gid_t groups[] = {5, 6};
    const struct {
        struct access_identity identity;
        uint32_t roles;
    } cases[] = {
        {{.address = "10.0.0.1"}, HPS_ROLE_LOOKUP | HPS_ROLE_READ},
        {{.is_unix = true, .user = 1234}, HPS_ROLE_LOOKUP | HPS_ROLE_READ},
        {{.admin = true, .address = "10.0.0.1"}, 0},
        {{.admin = true, .address = "10.0.0.1", .names = (char[]){"CN=x\0"}}, 0},
        {{.admin = true, .is_unix = true, .user = 1234, .groups = groups, .n_groups = 2}, 0},
        {{.admin = true, .is_unix = true, .user = 1234, .in_socket_group = true}, HPS_ROLES_ALL},
        {{.admin = true, .is_unix = true, .user = 0}, HPS_ROLES_ALL},
        {{.admin = true, .is_unix = true, .user = (uint32_t)geteuid()}, HPS_ROLES_ALL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (roles_of(rules, &cases[i].identity) != cases[i].roles) {
            fail_msg("case %zu", i);
        }
    }
    hps_access_rules_unref(rules);
}

static void test_grant_when_several_rules_match_then_their_union(void **state)
{
    struct hps_access_rules *rules = rules_of(
        "{\"rules\":["
        "{\"who\":[\"any\"],\"may\":[\"lookup\"],\"models\":[\"ads-*\"],\"requests_per_s\":10,"
        "\"reply_bytes\":1000},"
        "{\"who\":[\"cert:b.example\"],\"may\":[\"lookup\",\"load\"],\"models\":[\"dlrm\"],"
        "\"requests_per_s\":20,\"reply_bytes\":500},"
        "{\"who\":[\"group:6\"],\"may\":[\"read\"],\"models\":[\"x\",\"*\"]}]}");
    struct hps_limits *accounts = limits_of_none();
    gid_t groups[] = {5, 6};
    const struct access_identity identity = {.is_unix = true,
                                             .user = 1234,
                                             .groups = groups,
                                             .n_groups = 2,
                                             .names = (char[]){"a.example\0b.example\0"}};

    (void)state;
    struct hps_access_grant *grant = grant_of(accounts, rules, &identity, ACCESS_TOKEN_NONE, 0);
    assert_string_equal(grant->who, "cert:b.example"); /* the one that a rule knows */
    assert_int_equal(grant->roles, HPS_ROLE_LOOKUP | HPS_ROLE_LOAD | HPS_ROLE_READ);
    assert_int_equal(grant->roles_all, HPS_ROLE_READ);
    /* The most generous one of the rules that give the role: lookup, read, load, admin. */
    static const uint32_t requests_per_s[] = {20, 0, 20, 0};
    assert_memory_equal(grant->requests_per_s, requests_per_s, sizeof(requests_per_s));
    assert_int_equal(grant->reply_bytes, 1000);
    static const struct {
        const char *model;
        uint32_t role;
        bool allowed;
    } cases[] = {
        {"ads-1", HPS_ROLE_LOOKUP, true},  {"ads-", HPS_ROLE_LOOKUP, true},
        {"ads", HPS_ROLE_LOOKUP, false},   {"xads-1", HPS_ROLE_LOOKUP, false},
        {"dlrm", HPS_ROLE_LOOKUP, true},   {"dlrm2", HPS_ROLE_LOOKUP, false},
        {"ads-1", HPS_ROLE_LOAD, false},   {"dlrm", HPS_ROLE_LOAD, true},
        {"whatever", HPS_ROLE_READ, true}, {"dlrm", HPS_ROLE_ADMIN, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (access_grant_allows(grant, cases[i].role, cases[i].model, strlen(cases[i].model)) !=
            cases[i].allowed) {
            fail_msg("case %zu", i);
        }
    }
    assert_false(access_grant_allows(grant, HPS_ROLE_LOOKUP, NULL, 0)); /* not of all */
    assert_true(access_grant_allows(grant, HPS_ROLE_READ, NULL, 0));
    hps_access_grant_unref(grant);
    hps_limits_free(accounts);
    hps_access_rules_unref(rules);
}

static void test_covers_when_a_role_or_a_model_went_then_not(void **state)
{
    static const struct {
        const char *after;
        bool lookup, load;
    } cases[] = {
        {"\"may\":[\"lookup\",\"load\"],\"models\":[\"a\",\"b*\"]", true, true},
        {"\"may\":[\"lookup\",\"load\"]", true, true},
        {"\"may\":[\"lookup\"],\"models\":[\"b*\",\"a\",\"c\"]", true, false},
        {"\"may\":[\"lookup\",\"load\"],\"models\":[\"a\"]", false, false},
        {"\"may\":[\"read\"]", false, false},
        {"\"may\":[\"lookup\"],\"models\":[\"a*\",\"*b*\"]", true, false}, /* wider ones */
        {"\"may\":[\"lookup\"],\"models\":[\"a\",\"b?*\"]", false, false},
        {"\"may\":[\"lookup\"],\"models\":[\"a\",\"b*c\"]", false, false},
        {"\"may\":[\"lookup\"],\"models\":[\"a\",\"b\"]", false, false},
    };
    struct hps_access_rules *before = rules_of("{\"rules\":[{\"who\":[\"any\"],\"may\":[\"lookup\","
                                               "\"load\"],\"models\":[\"a\",\"b*\"]}]}");
    struct hps_limits *accounts = limits_of_none();
    const struct access_identity identity = {.address = "10.0.0.1"};
    struct hps_access_grant *had = grant_of(accounts, before, &identity, ACCESS_TOKEN_NONE, 0);

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[256];
        snprintf(text, sizeof(text), "{\"rules\":[{\"who\":[\"any\"],%s}]}", cases[i].after);
        struct hps_access_rules *rules = rules_of(text);
        struct hps_access_grant *has = grant_of(accounts, rules, &identity, ACCESS_TOKEN_NONE, 0);
        assert_int_equal(access_grant_covers(has, had, HPS_ROLE_LOOKUP), cases[i].lookup);
        assert_int_equal(access_grant_covers(has, had, HPS_ROLE_LOAD), cases[i].load);
        assert_true(access_grant_covers(has, had, HPS_ROLE_ADMIN)); /* it never had that one */
        hps_access_grant_unref(has);
        hps_access_rules_unref(rules);
    }
    hps_access_grant_unref(had);
    hps_limits_free(accounts);
    hps_access_rules_unref(before);
}

static void test_account_when_addresses_are_of_one_ipv6_network_then_it_is_theirs(void **state)
{
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        {"2001:db8::1", "2001:db8::ffff:2:1", true},
        {"2001:db8::1", "2001:db8:0:1::1", false},
        {"10.0.0.1", "10.0.0.2", false},
        {"::ffff:10.0.0.1", "::ffff:10.0.0.2", false},
        {"10.0.0.1", "10.0.0.1", true},
    };
    struct hps_access_rules *rules = rules_of(NULL);
    struct hps_limits *accounts = limits_of_none();

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct access_identity a = {0}, b = {0};
        snprintf(a.address, sizeof(a.address), "%s", cases[i].a);
        snprintf(b.address, sizeof(b.address), "%s", cases[i].b);
        struct hps_access_grant *of_a = grant_of(accounts, rules, &a, ACCESS_TOKEN_NONE, 0);
        struct hps_access_grant *of_b = grant_of(accounts, rules, &b, ACCESS_TOKEN_NONE, 0);
        if ((hps_access_grant_account(of_a) == hps_access_grant_account(of_b)) != cases[i].same) {
            fail_msg("case %zu", i);
        }
        assert_string_equal(of_a->who + strlen("address:"), cases[i].a);
        hps_access_grant_unref(of_a);
        hps_access_grant_unref(of_b);
    }
    hps_limits_free(accounts);
    hps_access_rules_unref(rules);
}

static void test_token_when_expired_or_unknown_then_said(void **state)
{
    struct hps_access_rules *rules = rules_of(
        "{\"rules\":[{\"who\":[\"token:b\"],\"may\":[\"read\"]}],\"tokens\":["
        "{\"name\":\"b\",\"sha256\":\"" DIGEST_B "\",\"expires\":\"2001-09-09T01:46:40Z\"},"
        "{\"name\":\"a\",\"sha256\":\"" DIGEST_A "\"}]}");
    struct hps_limits *accounts = limits_of_none();
    const struct access_identity identity = {.address = "10.0.0.1"};
    uint8_t digest[32];
    size_t token = 9;

    (void)state;
    memset(digest, 0xbb, sizeof(digest));
    assert_int_equal(access_rules_token(rules, digest, 999999999, &token), ACCESS_TOKEN_FILE);
    assert_int_equal(token, 1); /* in the order of digests */
    struct hps_access_grant *grant = grant_of(accounts, rules, &identity, ACCESS_TOKEN_FILE, token);
    assert_string_equal(grant->who, "token:b");
    assert_int_equal(grant->roles, HPS_ROLE_READ);
    assert_int_equal(grant->expires_unix_s, 1000000000);
    hps_access_grant_unref(grant);
    assert_int_equal(access_rules_token(rules, digest, 1000000000, &token), ACCESS_TOKEN_EXPIRED);
    memset(digest, 0xaa, sizeof(digest));
    assert_int_equal(access_rules_token(rules, digest, 1000000000, &token), ACCESS_TOKEN_FILE);
    digest[31]--;
    assert_int_equal(access_rules_token(rules, digest, 0, &token), ACCESS_TOKEN_UNKNOWN);
    assert_int_equal(access_rules_next_expiry(rules, 999999999), 1000000000);
    assert_int_equal(access_rules_next_expiry(rules, 1000000000), INT64_MAX);
    hps_limits_free(accounts);
    hps_access_rules_unref(rules);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grant_when_there_is_no_file_then_lookups_for_all_and_admin_for_few),
        cmocka_unit_test(test_grant_when_several_rules_match_then_their_union),
        cmocka_unit_test(test_covers_when_a_role_or_a_model_went_then_not),
        cmocka_unit_test(test_account_when_addresses_are_of_one_ipv6_network_then_it_is_theirs),
        cmocka_unit_test(test_token_when_expired_or_unknown_then_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
