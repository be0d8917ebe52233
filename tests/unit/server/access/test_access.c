/* SPDX-License-Identifier: Apache-2.0
 *
 * What is asked without a gRPC call, of a connection over a socket pair.
 */
#include "server/access/access.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "net/conn.h"
#include "tests/lib/tmpdir.h"

struct refused {
    unsigned n;
    char method[64];
};

static void on_refusal(void *ctx, const struct hps_access_refusal *refusal)
{
    struct refused *refused = ctx;
    refused->n++;
    (void)snprintf(refused->method, sizeof(refused->method), "%s", refusal->method);
}

static struct hps_limits *limits;

static struct hps_access *access_of(const char *rule, struct refused *refused)
{
    struct hps_tmpdir dir;
    char text[256];
    struct hps_access_rules *rules = NULL;
    struct hps_error err = {0};
    const struct hps_limits_options none = {.max = {UINT64_MAX / 4, UINT64_MAX / 4}};

    limits = hps_limits_new(&none, NULL);
    const struct hps_access_options options = {
        .limits = limits, .on_refusal = on_refusal, .ctx = refused};

    hps_tmpdir_open(&dir);
    (void)snprintf(text, sizeof(text), "{\"rules\":[{\"who\":[\"any\"],%s}]}", rule);
    hps_tmpdir_write(&dir, "roles", text, strlen(text));
    const struct hps_access_source source = {.file = hps_tmpdir_join(&dir, "roles"),
                                             .admin_token_file = ""};
    assert_int_equal(hps_access_rules_read(&source, &rules, &err), HPS_OK);
    hps_tmpdir_close(&dir);
    struct hps_access *access = hps_access_new(&options, rules);
    assert_non_null(access);
    return access;
}

static void test_ask_when_the_role_is_for_some_models_then_it_is_not_for_the_server(void **state)
{
    static const struct {
        const char *rule;
        hps_status status;
    } cases[] = {
        {"\"may\":[\"read\"]", HPS_OK},
        {"\"may\":[\"read\"],\"models\":[\"ads-*\"]", HPS_PERMISSION},
        {"\"may\":[\"lookup\"]", HPS_PERMISSION},
    };
    int fds[2];
    struct hps_conn *conn = NULL;
    struct hps_error err = {0};

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(hps_conn_new(fds[0], NULL, &conn, &err), HPS_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct refused refused = {0};
        struct hps_access *access = access_of(cases[i].rule, &refused);
        assert_int_equal(hps_access_ask(access, conn, "GET /metrics", NULL, HPS_ROLE_READ, &err),
                         cases[i].status);
        assert_int_equal(refused.n, cases[i].status != HPS_OK);
        assert_string_equal(refused.method, cases[i].status != HPS_OK ? "GET /metrics" : "");
        hps_access_free(access);
        hps_limits_free(limits);
    }
    hps_conn_free(conn);
    close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ask_when_the_role_is_for_some_models_then_it_is_not_for_the_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
