/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS contexts and sessions over a socket pair: wrong files, trust between client and server,
 * reload.
 */
#include "net/tls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/certs.h"

static struct hps_certs certs;

static int make_certs(void **state)
{
    (void)state;
    hps_certs_make(&certs);
    return 0;
}

static int remove_certs(void **state)
{
    (void)state;
    hps_certs_remove(&certs);
    return 0;
}

static struct hps_tls *tls_of(const struct hps_tls_options *options)
{
    struct hps_tls *tls = NULL;
    struct hps_error err = {0};
    hps_status status = hps_tls_new(options, &tls, &err);
    if (status != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return tls;
}

static struct hps_tls *server_of(const char *ca)
{
    return tls_of(&(struct hps_tls_options){.server = true,
                                            .cert_file = certs.server_cert,
                                            .key_file = certs.server_key,
                                            .ca_file = ca});
}

static struct hps_tls *client_of(const char *ca, bool with_cert, const char *name)
{
    return tls_of(&(struct hps_tls_options){
        .cert_file = with_cert ? certs.client_cert : NULL,
        .key_file = with_cert ? certs.client_key : NULL,
        .ca_file = ca,
        .server_name = name,
    });
}

struct pair {
    int fds[2];
    struct hps_tls_session *server, *client;
    hps_status server_status, client_status;
    struct hps_error server_err, client_err;
};

/* Runs both handshakes until they have ended or cannot continue. */
static void pair_open(struct pair *pair, struct hps_tls *server, struct hps_tls *client,
                      const char *host)
{
    enum hps_tls_wait wait;
    *pair = (struct pair){.server_status = HPS_AGAIN, .client_status = HPS_AGAIN};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair->fds),
                     0);
    assert_int_equal(hps_tls_session_new(server, pair->fds[0], NULL, &pair->server, NULL), HPS_OK);
    assert_int_equal(hps_tls_session_new(client, pair->fds[1], host, &pair->client, NULL), HPS_OK);
    for (unsigned i = 0; i < 20; i++) {
        if (pair->client_status == HPS_AGAIN) {
            pair->client_status = hps_tls_session_handshake(pair->client, &wait, &pair->client_err);
        }
        if (pair->server_status == HPS_AGAIN) {
            pair->server_status = hps_tls_session_handshake(pair->server, &wait, &pair->server_err);
        }
    }
}

static void pair_close(struct pair *pair)
{
    hps_tls_session_free(pair->server);
    hps_tls_session_free(pair->client);
    close(pair->fds[0]);
    close(pair->fds[1]);
}

static void test_handshake_when_trusted_then_h2_and_bytes(void **state)
{
    (void)state;
    struct hps_tls *server = server_of(NULL);
    struct hps_tls *client = client_of(certs.ca, false, NULL);
    struct pair pair;
    enum hps_tls_wait wait;
    char text[16];
    size_t size = 0;
    pair_open(&pair, server, client, "localhost");
    hps_tls_unref(server); /* sessions keep it */
    hps_tls_unref(client);
    assert_int_equal(pair.client_status, HPS_OK);
    assert_int_equal(pair.server_status, HPS_OK);
    assert_null(hps_tls_session_name(pair.server, 0));
    assert_string_equal(hps_tls_session_name(pair.client, 0), "localhost");
    assert_null(hps_tls_session_name(pair.client, 1)); /* an address is not a name */
    assert_int_equal(hps_tls_session_read(pair.server, text, 4, &size, &wait), HPS_AGAIN);
    assert_int_equal(wait, HPS_TLS_WAIT_READ);
    assert_int_equal(hps_tls_session_write(pair.client, "hello", 5, &size, &wait), HPS_OK);
    assert_int_equal(size, 5);
    assert_int_equal(hps_tls_session_read(pair.server, text, 4, &size, &wait), HPS_OK);
    assert_int_equal(size, 4);
    assert_true(hps_tls_session_pending(pair.server));
    assert_int_equal(hps_tls_session_read(pair.server, text, 4, &size, &wait), HPS_OK);
    assert_false(hps_tls_session_pending(pair.server));
    hps_tls_session_shutdown(pair.client);
    assert_int_equal(hps_tls_session_read(pair.server, text, 4, &size, &wait), HPS_CLOSED);
    pair_close(&pair);
}

static void test_handshake_when_name_does_not_match_then_unauthenticated(void **state)
{
    (void)state;
    struct hps_tls *server = server_of(NULL);
    struct hps_tls *client = client_of(certs.ca, false, NULL);
    static const struct {
        const char *host;
        hps_status status;
    } cases[] = {
        {"localhost", HPS_OK},
        {"127.0.0.1", HPS_OK},
        {"::1", HPS_OK},
        {"127.0.0.2", HPS_UNAUTHENTICATED},
        {"other.example", HPS_UNAUTHENTICATED},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pair pair;
        pair_open(&pair, server, client, cases[i].host);
        assert_int_equal(pair.client_status, cases[i].status);
        pair_close(&pair);
    }
    hps_tls_unref(client);
    client = client_of(certs.ca, false, "localhost"); /* it precedes the host */
    struct pair pair;
    pair_open(&pair, server, client, "other.example");
    assert_int_equal(pair.client_status, HPS_OK);
    pair_close(&pair);
    hps_tls_unref(client);
    hps_tls_unref(server);
}

static void test_handshake_when_ca_is_unknown_then_unauthenticated(void **state)
{
    (void)state;
    struct hps_tls *server = server_of(NULL);
    struct hps_tls *client = client_of(certs.rogue_ca, false, NULL);
    struct pair pair;
    pair_open(&pair, server, client, "localhost");
    assert_int_equal(pair.client_status, HPS_UNAUTHENTICATED);
    assert_true(strlen(pair.client_err.text) > 10);
    assert_int_not_equal(pair.server_status, HPS_OK);
    pair_close(&pair);
    hps_tls_unref(client);
    hps_tls_unref(server);
}

static void test_handshake_when_mtls_then_identity_or_unauthenticated(void **state)
{
    (void)state;
    struct hps_tls *server = server_of(certs.ca);
    struct hps_tls *with = client_of(certs.ca, true, NULL);
    struct hps_tls *without = client_of(certs.ca, false, NULL);
    struct hps_tls *rogue = tls_of(&(struct hps_tls_options){
        .cert_file = certs.rogue_cert, .key_file = certs.rogue_key, .ca_file = certs.ca});
    struct pair pair;
    pair_open(&pair, server, with, "localhost");
    assert_int_equal(pair.server_status, HPS_OK);
    assert_string_equal(hps_tls_session_name(pair.server, 0), "CN=trainer");
    assert_null(hps_tls_session_name(pair.server, 1));
    pair_close(&pair);
    pair_open(&pair, server, without, "localhost");
    assert_int_equal(pair.server_status, HPS_UNAUTHENTICATED);
    pair_close(&pair);
    pair_open(&pair, server, rogue, "localhost");
    assert_int_equal(pair.server_status, HPS_UNAUTHENTICATED);
    pair_close(&pair);
    hps_tls_unref(rogue);
    hps_tls_unref(with);
    hps_tls_unref(without);
    hps_tls_unref(server);
}

static struct hps_tls *server_with_crl(const char *ca, const char *crl)
{
    return tls_of(&(struct hps_tls_options){.server = true,
                                            .cert_file = certs.server_cert,
                                            .key_file = certs.server_key,
                                            .ca_file = ca,
                                            .crl_file = crl});
}

static void test_handshake_when_certificate_is_revoked_then_unauthenticated(void **state)
{
    (void)state;
    struct hps_tls *server = server_with_crl(certs.ca, certs.crl);
    struct hps_tls *client = client_of(certs.ca, true, NULL);
    struct pair pair;
    pair_open(&pair, server, client, "localhost");
    assert_int_equal(pair.server_status, HPS_UNAUTHENTICATED);
    assert_non_null(strstr(pair.server_err.text, "revoked"));
    pair_close(&pair);
    hps_tls_unref(server);
    server = server_with_crl(certs.ca, certs.crl_none);
    pair_open(&pair, server, client, "localhost");
    assert_int_equal(pair.server_status, HPS_OK);
    pair_close(&pair);
    hps_tls_unref(server);
    hps_tls_unref(client);
}

static void test_recheck_when_files_are_renewed_then_they_apply_to_open_sessions(void **state)
{
    (void)state;
    struct hps_tls *server = server_of(certs.ca);
    struct hps_tls *client = client_of(certs.ca, true, NULL);
    struct hps_error err = {0};
    struct pair pair;
    pair_open(&pair, server, client, "localhost");
    assert_int_equal(pair.server_status, HPS_OK);
    assert_int_equal(hps_tls_session_recheck(pair.server, &err), HPS_OK);
    hps_tls_renew(server, server_with_crl(certs.ca, certs.crl_none));
    assert_int_equal(hps_tls_session_recheck(pair.server, &err), HPS_OK);
    hps_tls_renew(server, server_with_crl(certs.ca, certs.crl));
    assert_int_equal(hps_tls_session_recheck(pair.server, &err), HPS_UNAUTHENTICATED);
    assert_non_null(strstr(err.text, "revoked"));
    hps_tls_renew(server, server_of(certs.rogue_ca));
    assert_int_equal(hps_tls_session_recheck(pair.server, &err), HPS_UNAUTHENTICATED);
    hps_tls_renew(server, server_of(NULL)); /* the server requires no certificates any more */
    assert_int_equal(hps_tls_session_recheck(pair.server, &err), HPS_OK);
    pair_close(&pair);
    hps_tls_unref(server);
    hps_tls_unref(client);
}

static void test_recheck_when_a_certificate_is_required_then_sessions_without_one_fail(void **state)
{
    (void)state;
    struct hps_tls *server = server_of(NULL);
    struct hps_tls *client = client_of(certs.ca, false, NULL);
    struct hps_error err = {0};
    struct pair pair;
    pair_open(&pair, server, client, "localhost");
    assert_int_equal(pair.server_status, HPS_OK);
    hps_tls_renew(server, tls_of(&(struct hps_tls_options){.server = true,
                                                           .cert_file = certs.server_cert,
                                                           .key_file = certs.server_key,
                                                           .ca_file = certs.ca,
                                                           .peer_optional = true}));
    assert_int_equal(hps_tls_session_recheck(pair.server, &err), HPS_OK);
    hps_tls_renew(server, server_of(certs.ca));
    assert_int_equal(hps_tls_session_recheck(pair.server, &err), HPS_UNAUTHENTICATED);
    assert_non_null(strstr(err.text, "no certificate"));
    pair_close(&pair);
    hps_tls_unref(server);
    hps_tls_unref(client);
}

static void test_new_when_fields_have_names_then_errors_begin_with_them(void **state)
{
    (void)state;
    static const struct hps_tls_names names = {"a.cert", "a.key",  "a.ca",
                                               "a.crl",  "a.list", "a.suites"};
    const struct hps_tls_options good = {.server = true,
                                         .names = &names,
                                         .cert_file = certs.server_cert,
                                         .key_file = certs.server_key,
                                         .ca_file = certs.ca,
                                         .crl_file = certs.crl};
    struct hps_tls_options options[6] = {good, good, good, good, good, good};
    static const char *const named[6] = {"a.cert '", "a.key '",  "a.ca '",
                                         "a.crl '",  "a.list '", "a.suites '"};
    options[0].cert_file = certs.client_key;
    options[1].key_file = certs.client_key;
    options[2].ca_file = certs.client_key;
    options[3].crl_file = certs.ca;
    options[4].ciphers = "no-such-cipher";
    options[5].ciphersuites = "no-such-suite";
    for (size_t i = 0; i < 6; i++) {
        struct hps_tls *tls = NULL;
        struct hps_error err = {0};
        assert_int_equal(hps_tls_new(&options[i], &tls, &err), HPS_INVALID);
        assert_int_equal(strncmp(err.text, named[i], strlen(named[i])), 0);
    }
    options[0] = good;
    options[0].key_file = NULL; /* then the key must be in cert_file, but is not */
    struct hps_tls *tls = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_tls_new(&options[0], &tls, &err), HPS_INVALID);
    assert_int_equal(strncmp(err.text, "a.cert '", 8), 0);
}

static void test_new_when_ciphers_or_crl_are_unusable_then_error_names_them(void **state)
{
    (void)state;
    struct hps_tls_options options = {.server = true,
                                      .cert_file = certs.server_cert,
                                      .key_file = certs.server_key,
                                      .ciphers = "no-such-cipher"};
    struct hps_tls *tls = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_tls_new(&options, &tls, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "no-such-cipher"));
    options.ciphers = NULL;
    options.ciphersuites = "";
    assert_int_equal(hps_tls_new(&options, &tls, &err), HPS_INVALID);
    options.ciphersuites = NULL;
    options.ca_file = certs.ca;
    options.crl_file = certs.ca; /* not a CRL */
    assert_int_equal(hps_tls_new(&options, &tls, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "CRL"));
}

static void test_handshake_when_peer_speaks_no_tls_then_unavailable(void **state)
{
    (void)state;
    struct hps_tls *server = server_of(NULL);
    struct hps_tls_session *session = NULL;
    struct hps_error err = {0};
    enum hps_tls_wait wait;
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(hps_tls_session_new(server, fds[0], NULL, &session, NULL), HPS_OK);
    assert_int_equal(write(fds[1], "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24), 24);
    assert_int_equal(hps_tls_session_handshake(session, &wait, &err), HPS_UNAVAILABLE);
    assert_true(strlen(err.text) > 5);
    hps_tls_session_free(session);
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(hps_tls_session_new(server, fds[0], NULL, &session, NULL), HPS_OK);
    close(fds[1]);
    assert_int_equal(hps_tls_session_handshake(session, &wait, &err), HPS_CLOSED);
    hps_tls_session_free(session);
    hps_tls_unref(server);
    close(fds[0]);
}

static void test_new_when_files_are_wrong_then_error_names_the_file(void **state)
{
    (void)state;
    char missing[HPS_CERTS_PATH_MAX];
    char config[HPS_CERTS_PATH_MAX];
    snprintf(missing, sizeof(missing), "%.200s/missing.pem", certs.dir);
    snprintf(config, sizeof(config), "%.200s/openssl.cnf", certs.dir);
    const struct {
        const char *cert, *key, *ca, *named;
        hps_status status;
    } cases[] = {
        {missing, certs.server_key, NULL, missing, HPS_IO},
        {certs.server_cert, missing, NULL, missing, HPS_IO},
        {certs.server_cert, certs.server_key, missing, missing, HPS_IO},
        {config, certs.server_key, NULL, config, HPS_INVALID},
        {certs.server_cert, config, NULL, config, HPS_INVALID},
        {certs.server_cert, certs.server_key, config, config, HPS_INVALID},
        {certs.server_cert, certs.client_key, NULL, certs.client_key, HPS_INVALID},
        {NULL, NULL, NULL, "cert_file", HPS_INVALID},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_tls *tls = NULL;
        struct hps_error err = {0};
        struct hps_tls_options options = {.server = true,
                                          .cert_file = cases[i].cert,
                                          .key_file = cases[i].key,
                                          .ca_file = cases[i].ca};
        assert_int_equal(hps_tls_new(&options, &tls, &err), cases[i].status);
        assert_null(tls);
        assert_non_null(strstr(err.text, cases[i].named));
    }
    hps_tls_unref(NULL);
}

static hps_status renew(struct hps_tls *tls, const char *cert, const char *key,
                        struct hps_error *err)
{
    struct hps_tls *fresh = NULL;
    hps_status status = hps_tls_new(
        &(struct hps_tls_options){.server = true, .cert_file = cert, .key_file = key}, &fresh, err);
    if (status == HPS_OK) {
        hps_tls_renew(tls, fresh);
    }
    return status;
}

static void test_renew_when_files_are_valid_then_used_by_new_sessions(void **state)
{
    (void)state;
    char cert[HPS_CERTS_PATH_MAX];
    char key[HPS_CERTS_PATH_MAX];
    char config[HPS_CERTS_PATH_MAX];
    struct hps_error err = {0};
    struct pair before, after;
    snprintf(cert, sizeof(cert), "%.200s/live.pem", certs.dir);
    snprintf(key, sizeof(key), "%.200s/live.key", certs.dir);
    snprintf(config, sizeof(config), "%.200s/openssl.cnf", certs.dir);
    hps_certs_copy(certs.server_cert, cert);
    hps_certs_copy(certs.server_key, key);
    struct hps_tls *server =
        tls_of(&(struct hps_tls_options){.server = true, .cert_file = cert, .key_file = key});
    struct hps_tls *client = client_of(certs.ca, false, NULL);
    struct hps_tls *rogue = client_of(certs.rogue_ca, false, NULL);
    pair_open(&before, server, client, "localhost");
    assert_int_equal(before.client_status, HPS_OK);

    hps_certs_copy(config, cert);
    assert_int_equal(renew(server, cert, key, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, cert));
    pair_open(&after, server, client, "localhost");
    assert_int_equal(after.client_status, HPS_OK);
    pair_close(&after);

    hps_certs_copy(certs.rogue_cert, cert);
    assert_int_equal(renew(server, cert, key, &err), HPS_INVALID); /* the key does not match yet */
    hps_certs_copy(certs.rogue_key, key);
    assert_int_equal(renew(server, cert, key, &err), HPS_OK);
    pair_open(&after, server, rogue, "localhost");
    assert_int_equal(after.client_status, HPS_OK);
    pair_close(&after);

    char byte;
    size_t size = 0;
    enum hps_tls_wait wait;
    assert_int_equal(hps_tls_session_write(before.client, "x", 1, &size, &wait), HPS_OK);
    assert_int_equal(hps_tls_session_read(before.server, &byte, 1, &size, &wait), HPS_OK);
    pair_close(&before);
    hps_tls_unref(rogue);
    hps_tls_unref(client);
    hps_tls_unref(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handshake_when_trusted_then_h2_and_bytes),
        cmocka_unit_test(test_handshake_when_name_does_not_match_then_unauthenticated),
        cmocka_unit_test(test_handshake_when_ca_is_unknown_then_unauthenticated),
        cmocka_unit_test(test_handshake_when_mtls_then_identity_or_unauthenticated),
        cmocka_unit_test(test_handshake_when_certificate_is_revoked_then_unauthenticated),
        cmocka_unit_test(test_recheck_when_files_are_renewed_then_they_apply_to_open_sessions),
        cmocka_unit_test(
            test_recheck_when_a_certificate_is_required_then_sessions_without_one_fail),
        cmocka_unit_test(test_new_when_fields_have_names_then_errors_begin_with_them),
        cmocka_unit_test(test_new_when_ciphers_or_crl_are_unusable_then_error_names_them),
        cmocka_unit_test(test_handshake_when_peer_speaks_no_tls_then_unavailable),
        cmocka_unit_test(test_new_when_files_are_wrong_then_error_names_the_file),
        cmocka_unit_test(test_renew_when_files_are_valid_then_used_by_new_sessions),
    };
    return cmocka_run_group_tests(tests, make_certs, remove_certs);
}
